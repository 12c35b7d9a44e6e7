"""The command line `executor`.

In: arguments, and settings from the environment. Out: a service (`serve`), a database schema (`migrate`), a
backup (`export`), or a response of the HTTP API, as a table or, with `--json`, as JSON. Exit codes: 0
success, 1 rejected or failed, 2 wrong usage or setting, 3 a server cannot be reached, 4 timeout.
"""

from typing import ClassVar

import typer

from turnstile.common.cli import VersionOption, command_line, run_command_line
from turnstile.executor.cli.lazy_commands import LazyCommand, LazyCommandGroup

_SUMMARY = "Schedule executions in FIFO order, within the concurrency limit of each action."


def _lazy(target: str, summary: str, *, extra: str = "cli") -> LazyCommand:
    return LazyCommand(f"turnstile.executor.cli.{target}", summary, extra)


def _of_executor(target: str, summary: str) -> LazyCommand:
    """Return a command that uses the database or the broker."""
    return _lazy(target, summary, extra="executor")


class Commands(LazyCommandGroup):
    """Every command of the service; `turnstile.cli` adds the demo, which is none of its own."""

    lazy_commands: ClassVar[dict[str, LazyCommand]] = {
        "serve": _of_executor("serve:serve", "Run the executor service."),
        "migrate": _of_executor("migrate:migrate", "Migrate the database to the schema of this version."),
        "doctor": _of_executor(
            "doctor:doctor", "Check database, broker and this host; name a remedy for each fault."
        ),
        "setup-permissions": _of_executor(
            "setup_permissions:setup_permissions", "Create least-privilege accounts for each service."
        ),
        "export": _of_executor(
            "backup:export", "Write a backup of the database to a file, while everything runs."
        ),
        "restore-check": _of_executor(
            "backup:restore_check", "Make a restored database safe before executors and workers start."
        ),
        "submit": _lazy("submit:submit", "Submit one execution, or many from a file."),
        "get": _lazy("executions:get", "Show an execution: status, attempts, and why it waits or failed."),
        "submission": _lazy(
            "executions:submission",
            "Show whether a request of a database transaction was admitted or rejected.",
        ),
        "list": _lazy("executions:list_executions", "List executions, newest or oldest first."),
        "watch": _lazy("executions:watch", "Watch an execution until it ends."),
        "logs": _lazy("executions:logs", "Print the logs of an execution."),
        "cancel": _lazy("cancel_retry:cancel", "Cancel waiting and running executions."),
        "retry": _lazy("cancel_retry:retry", "Retry ended executions: each retry is a new execution."),
        "audit": _lazy(
            "audit:audit", "Check that all rows agree, and that the leader remembers what they say."
        ),
        "audit-log": _lazy("audit:audit_log", "Show what operators did: who, when and what."),
        "history": _lazy(
            "history:history",
            "Show what executions did over time: throughput, failures, waiting and run times, slots in use.",
        ),
        "attention": _lazy(
            "attention:attention",
            "List what needs attention, the worst first, each with the command that mends it.",
        ),
        "top": _lazy("top:top", "Show queues, slots, failures and workers, refreshed every second."),
        "actions": _lazy("actions:app", "Manage actions: definitions, limits, pause and resume."),
        "resources": _lazy("resources:app", "Manage resources, which several actions share."),
        "pools": _lazy("pools:app", "Manage pools of workers: order, weights, pause and resume."),
        "schedules": _lazy("schedules:app", "Manage schedules: when actions run by themselves."),
        "queue": _lazy("queues:app", "Show statistics, slot holders and waiting executions."),
        "workers": _lazy("workers:app", "List, show, drain and acknowledge workers."),
        "tokens": _of_executor("tokens:app", "Create, list and revoke API tokens."),
        "webhooks": _lazy("webhooks:app", "List webhook deliveries and replay them."),
        "dead-letters": _lazy("dead_letters:app", "Manage dead-lettered messages."),
    }


def executor_command_line(group: type[Commands]) -> typer.Typer:
    """Return the command line `executor` with the commands of a group."""
    app = command_line(_SUMMARY, group=group, completes=True)

    @app.callback(help=_SUMMARY)
    def options(version: VersionOption = False) -> None:
        """Take no other option: each belongs to a command."""

    return app


app = executor_command_line(Commands)


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="executor")
