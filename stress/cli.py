"""The command line `turnstile stress`.

Exit codes: 0 every check passed, 1 a check failed, 2 wrong usage, 3 the installation cannot be reached.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from turnstile.common import needs_extra
from turnstile.common.api_token import api_token
from turnstile.common.cli import (
    CommandFailed,
    command_line,
    refuse_passwords,
    run_command_line,
)
from turnstile.common.exit_codes import ExitCode

app = command_line("Load-test an installation and verify order and limits.")


@app.command("run")
def run_command(
    *,
    local: Annotated[
        bool, typer.Option("--local", help="Start private servers, executors and workers.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="One of smoke, gates, recovery, soak. Default: the load of the options, then short "
            "measurements.",
            metavar="NAME",
        ),
    ] = None,
    actions: Annotated[int, typer.Option(metavar="NUMBER", help="Number of actions.")] = 10,
    limit: Annotated[
        str, typer.Option(help="Concurrency limit of each queue, or 'none'.", metavar="NUMBER")
    ] = "4",
    executions: Annotated[
        int | None, typer.Option(help="Number of executions. Default: 20000.", metavar="NUMBER")
    ] = None,
    duration_mix: Annotated[
        str | None,
        typer.Option(help="Durations of executions, like '70% 0ms, 25% 20ms, 5% 500ms'.", metavar="MIX"),
    ] = None,
    keys: Annotated[int, typer.Option(metavar="NUMBER", help="Concurrency keys per action; 0: none.")] = 0,
    submitters: Annotated[int, typer.Option(metavar="NUMBER", help="Number of parallel submitters.")] = 4,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", help="Requests per second. Default: as fast as the broker confirms them."
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            help="With --local: faults to inject, comma-separated, or 'all': kill-worker, kill-executor, "
            "pause-worker, pause-executor, restart-broker, restart-database, purge-queues, change-limit.",
            metavar="KIND,...",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(help="Duration of a soak, default 1h, or of gates, default 1m.", metavar="DURATION"),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", help="Seed of the random load; the same seed repeats the load.")
    ] = 7,
    report: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for report.txt, report.json and recordings."),
    ] = Path("stress-report"),
    executors: Annotated[int, typer.Option(metavar="NUMBER", help="With --local: number of executors.")] = 2,
    workers: Annotated[int, typer.Option(metavar="NUMBER", help="With --local: number of workers.")] = 2,
    lease: Annotated[
        str | None,
        typer.Option(
            help="With --local: lease duration of the workers; default 15s, for smoke 3s.", metavar="DURATION"
        ),
    ] = None,
    amqp_url: Annotated[
        str | None,
        typer.Option(envvar="TURNSTILE_AMQP_URL", metavar="URL", help="URL of the broker, without --local."),
    ] = None,
    api_url: Annotated[
        str | None,
        typer.Option(
            envvar="TURNSTILE_API_URL", help="URLs of the HTTP API, comma-separated.", metavar="URL,..."
        ),
    ] = None,
) -> None:
    """Load an installation, check its history, measure it, and write a report.

    Without --local, the installation needs workers for the actions of the stress test: 'worker serve
    --actions turnstile.stress.actions', with TURNSTILE_STRESS_ACTIONS=<--actions>. If its API needs a token,
    set TURNSTILE_API_TOKEN, or TURNSTILE_API_TOKEN_FILE to the name of a file with it.
    """
    options = locals()
    refuse_passwords({"amqp_url": amqp_url, "api_url": api_url})
    _require_numpy()
    from turnstile.stress import config, run  # noqa: PLC0415

    try:
        parsed = config.read_config(options)
        installation = None if local else config.installation_at(amqp_url, api_url, api_token(os.environ))
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=ExitCode.USAGE) from None
    raise typer.Exit(run.run(parsed, installation, report, command=sys.argv[1:]))


@app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a report with its recordings.")],
) -> None:
    """Check the recordings of a run again and rewrite its report."""
    _require_numpy()
    from turnstile.stress import run  # noqa: PLC0415
    from turnstile.stress.report import store  # noqa: PLC0415

    try:
        report = store.check_again(folder)
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{folder}: not the folder of a report with its recordings ({error}); "
            "expected the folder of 'turnstile stress run --report FOLDER'",
            exit_code=ExitCode.USAGE,
        ) from None
    store.show_report(folder, report, run.plain_console())
    raise typer.Exit(ExitCode.OK if report.passed else ExitCode.FAILED)


def _require_numpy() -> None:
    if importlib.util.find_spec("numpy") is None:
        raise CommandFailed(
            f"{needs_extra('`turnstile stress`', 'stress')} (numpy is missing)", exit_code=ExitCode.USAGE
        )


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="turnstile stress")


if __name__ == "__main__":
    main()
