"""The command line `turnstile`: every command line of the project under one name.

`turnstile executor ...` is `executor ...`, and `turnstile worker ...` is `worker ...`.
A group is imported when it is called.
"""

from typing import ClassVar

from turnstile.common.command_line import command_line, run_command_line
from turnstile.executor.cli.lazy_commands import CommandsOnDemand, Place


def _app(package: str, summary: str) -> Place:
    return Place(module=f"turnstile.{package}.cli", attribute="app", summary=summary)


class _CommandLines(CommandsOnDemand):
    """One group for each service, and one for the stress harness."""

    places: ClassVar[dict[str, Place]] = {
        "executor": _app("executor", "Schedule executions; submit, list, cancel and retry them."),
        "worker": _app("worker", "Run executions of the actions that a module declares."),
        "stress": _app("stress", "Load an installation and check that order and limits held."),
    }


app = command_line(
    "Schedules executions in strict arrival order, within the concurrency limit of each action.",
    group=_CommandLines,
    completes=True,
)


@app.callback()
def group() -> None:
    """Schedule executions in strict arrival order, within the concurrency limit of each action."""


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="turnstile")
