"""The command line `executor`.

In: arguments, and settings from the environment. Out: a service (`serve`), a database (`migrate`), or an
answer of the HTTP API, for people or with `--json` for scripts. Exit codes: 0 done, 1 something was refused
or failed, 2 wrong usage or setting, 3 a server cannot be reached, 4 waited too long.
"""

from typing import ClassVar

from turnstile.common.command_line import command_line, run_command_line
from turnstile.executor.cli.lazy_commands import CommandsOnDemand, Place


def _place(module: str, attribute: str, summary: str) -> Place:
    return Place(module=f"turnstile.executor.cli.{module}", attribute=attribute, summary=summary)


class _Commands(CommandsOnDemand):
    """All there are; the summaries are those of the commands' own help."""

    places: ClassVar[dict[str, Place]] = {
        "serve": _place("serve", "serve", "Serve requests, queues and the HTTP API."),
        "migrate": _place("migrate", "migrate", "Bring the database to this version's schema."),
        "setup-permissions": _place(
            "setup_permissions", "setup_permissions", "Give each service accounts of its own."
        ),
        "demo": _place("demo", "demo", "Watch 200 executions pass on private servers."),
        "submit": _place("submit", "submit", "Ask for an execution of an action, or for many."),
        "get": _place("executions", "get", "Show an execution: how it stands, why it waits, what was tried."),
        "list": _place("executions", "list_executions", "List executions, the newest first."),
        "watch": _place("watch", "watch", "Follow an execution to its end; the exit code tells how."),
        "logs": _place("logs", "logs", "Print what an execution has logged."),
        "cancel": _place("cancel_retry", "cancel", "End executions; those that run are asked to stop."),
        "retry": _place("cancel_retry", "retry", "Do ended executions again, as new ones."),
        "audit": _place("audit", "audit", "Recount everything and compare."),
        "top": _place("top", "top", "Show what goes on: queues, slots, workers; live on a terminal."),
        "actions": _place("actions", "app", "Define actions and look at their definitions."),
        "queue": _place("queue", "app", "Look at queues."),
        "workers": _place("workers", "app", "Look at workers, and have one leave."),
        "webhooks": _place("webhooks", "app", "Look at webhooks, and have them posted once more."),
        "dead-letters": _place(
            "dead_letters", "app", "Manage dead-lettered messages: list, show, replay and purge them."
        ),
    }


app = command_line(
    "Runs executions of actions in strict arrival order, never more at once than each action allows.",
    group=_Commands,
    completes=True,
)


@app.callback()
def group() -> None:
    """Run executions of actions in strict arrival order, never more at once than each action allows."""


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="executor")
