"""The command lines `turnstile` and `executor`: what an installation consists of is put together here.

`turnstile executor ...` is `executor ...`, and `turnstile worker ...` is `worker ...`. A group is imported
when it is called. `executor demo` is added here: the executor knows neither the stress harness nor the local
servers.
"""

from typing import ClassVar

from turnstile.common.cli import VersionOption, command_line, run_command_line
from turnstile.executor.cli import Commands, executor_command_line
from turnstile.executor.cli.lazy_commands import LazyCommand, LazyCommandGroup

_SUMMARY = "Schedule executions in FIFO order, within the concurrency limit of each action."


class _ExecutorCommands(Commands):
    """The commands of the service, and the demo."""

    lazy_commands: ClassVar[dict[str, LazyCommand]] = Commands.lazy_commands | {
        "demo": LazyCommand(
            "turnstile.stress.demo:demo",
            "Run 200 executions on private servers and check order and limits.",
            extra="stress",
        ),
    }


executor_app = executor_command_line(_ExecutorCommands)


class _CommandLines(LazyCommandGroup):
    """The command lines of the services and of the stress harness, and the health check."""

    lazy_commands: ClassVar[dict[str, LazyCommand]] = {
        "executor": LazyCommand(
            "turnstile.cli:executor_app", "Run the executor; submit, list, cancel and retry executions."
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
        "worker-check": LazyCommand(
            "turnstile.testing.worker_check.command:worker_check",
            "Check that a worker, in any language, follows the protocol.",
            extra="dev",
        ),
        "env": LazyCommand(
            "turnstile.env:env", "Print an environment file for compose.yaml, with new random secrets."
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
    """Run the command line `turnstile`."""
    run_command_line(app, name="turnstile")


def executor() -> None:
    """Run the command line `executor`."""
    run_command_line(executor_app, name="executor")
