"""`executor demo`: the system shown at work on private servers, or left running to be tried.

In: nothing but the machine. Out: a report and an exit code: 0 every promise was kept, 1 one was not, 69 a
server is not installed and the message holds the command that installs it. Next: `executor.demo.run`.
"""

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from turnstile.common.command_line import EXIT_FAILED, EXIT_USAGE, CommandFailed

_LINE_WIDTH_ELSEWHERE = 120


def demo(
    stay: Annotated[
        bool, typer.Option("--stay", help="Start everything, submit nothing, print the URLs and stay.")
    ] = False,
) -> None:
    """Watch 200 executions pass on private servers.

    At the end: a report from the history in the database. No process and no folder stays behind.
    """
    from turnstile.common.domain.errors import TurnstileError  # noqa: PLC0415
    from turnstile.executor.demo import run, system  # noqa: PLC0415
    from turnstile.localservers import LocalServersError  # noqa: PLC0415
    from turnstile.localservers.signals import until_signal  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _LINE_WIDTH_ELSEWHERE
    try:
        if stay:
            code = asyncio.run(until_signal(run.stay(console), say=console.print, code_when_told=0))
        else:
            code = asyncio.run(until_signal(run.run_job(console), say=console.print))
    except LocalServersError as error:
        raise CommandFailed(str(error), exit_code=error.exit_code) from None
    except system.NoExamples as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except (TurnstileError, OSError) as error:
        raise CommandFailed(
            f"the demonstration failed: {str(error) or type(error).__name__}", exit_code=EXIT_FAILED
        ) from None
    raise typer.Exit(code)
