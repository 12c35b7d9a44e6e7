"""The command line `turnstile`: the command lines of all parts under one name, `dev` and `healthcheck`.

`turnstile executor ...` is `executor ...`, and `turnstile worker ...` is `worker ...`. A group is imported
when it is called.
"""

from typing import ClassVar

from turnstile.common.cli import VersionOption, command_line, run_command_line
from turnstile.executor.cli.lazy_commands import LazyCommand, LazyCommandGroup

_SUMMARY = "Schedule executions in FIFO order, within the concurrency limit of each action."


class _CommandLines(LazyCommandGroup):
    """The command lines of the services and of the stress harness, and the health check."""

    lazy_commands: ClassVar[dict[str, LazyCommand]] = {
        "executor": LazyCommand(
            "turnstile.executor.cli:app", "Run the executor; submit, list, cancel and retry executions."
        ),
        "worker": LazyCommand(
            "turnstile.worker.cli:app", "Run workers that execute the actions of a module.", extra="worker"
        ),
        "dev": LazyCommand(
            "turnstile.dev:dev",
            "Run private servers, an executor, and a worker that follows your changes.",
            extra="dev",
        ),
        "stress": LazyCommand(
            "turnstile.stress.cli:app",
            "Load-test an installation and verify order and limits.",
            extra="stress",
        ),
        "healthcheck": LazyCommand(
            "turnstile.healthcheck:healthcheck", "Check that the service in this container is alive."
        ),
    }


app = command_line(_SUMMARY, group=_CommandLines, completes=True)


@app.callback(help=_SUMMARY)
def group(version: VersionOption = False) -> None:
    """Take no other option: each belongs to a command."""


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="turnstile")
