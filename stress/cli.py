"""The command line `stress`.

In: a preset, or a load in options; the URLs of an installation, or `--local`. Out: a report, and an exit
code: 0 every promise was kept, 1 one was broken, 2 wrong usage, 3 the installation cannot be reached.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from turnstile.common.api_token import api_token
from turnstile.common.command_line import (
    EXIT_FAILED,
    EXIT_USAGE,
    CommandFailed,
    command_line,
    refuse_passwords,
    run_command_line,
)

_LIBRARIES: Final = ("numpy", "matplotlib", "jinja2")

app = command_line("Puts an installation under load, and says whether order and limits held, and how fast.")


@app.callback()
def _group() -> None:
    # One command would otherwise swallow its own name.
    pass


@app.command("run")
def run_command(
    *,
    local: Annotated[
        bool, typer.Option("--local", help="Bring up private servers, executors and workers.")
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(help="smoke, limits, fifo, keys, depth, recovery or soak.", metavar="NAME"),
    ] = None,
    actions: Annotated[int, typer.Option(help="How many actions.")] = 10,
    limit: Annotated[str, typer.Option(help="Of each queue; 'none': no limit.", metavar="NUMBER")] = "4",
    executions: Annotated[
        int | None, typer.Option(help="How many; the default run asks for 20000.", metavar="NUMBER")
    ] = None,
    duration_mix: Annotated[
        str | None,
        typer.Option(help="What they take, like '70% 0ms, 25% 20ms, 5% 500ms'.", metavar="MIX"),
    ] = None,
    keys: Annotated[int, typer.Option(help="Concurrency keys of each action; 0: none.")] = 0,
    submitters: Annotated[int, typer.Option(help="How many ask side by side.")] = 4,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; as fast as they are taken unless given.")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            help="With --local: what to break meanwhile, by commas, or 'all': kill-worker, kill-executor, "
            "pause-worker, pause-executor, restart-broker, restart-database, purge-queues, change-limit.",
            metavar="KIND,...",
        ),
    ] = None,
    depths: Annotated[
        str | None, typer.Option(help="Of the depth figure, like 100,10000.", metavar="A,B,...")
    ] = None,
    key_counts: Annotated[
        str | None, typer.Option(help="Of the keys figure, like 1,100.", metavar="A,B,...")
    ] = None,
    duration: Annotated[str, typer.Option(help="Of a soak.", metavar="DURATION")] = "1h",
    seed: Annotated[int, typer.Option(help="The same seed gives the same load.")] = 7,
    report: Annotated[
        Path, typer.Option(help="Folder for report.html, report.json, pictures and recordings.")
    ] = Path("stress-report"),
    executors: Annotated[int, typer.Option(help="With --local: how many.")] = 2,
    workers: Annotated[int, typer.Option(help="With --local: how many.")] = 2,
    lease: Annotated[
        str | None,
        typer.Option(
            help="With --local: of the workers; 15s, and 3s for smoke, unless given.", metavar="DURATION"
        ),
    ] = None,
    amqp_url: Annotated[
        str | None, typer.Option(envvar="TURNSTILE_AMQP_URL", help="The broker, without --local.")
    ] = None,
    api_url: Annotated[
        str | None,
        typer.Option(envvar="TURNSTILE_API_URL", help="The HTTP API; several by commas.", metavar="URL,..."),
    ] = None,
) -> None:
    """Put an installation under load, check its whole history, measure it, write a report.

    Without --local the installation needs workers for the actions of the harness:
    'worker serve --actions turnstile.stress.actions', with TURNSTILE_STRESS_ACTIONS=<--actions>; and the
    token of its API, where it wants one, in TURNSTILE_API_TOKEN or the file that TURNSTILE_API_TOKEN_FILE
    names.
    """
    refuse_passwords({"amqp_url": amqp_url, "api_url": api_url})
    _require_libraries()
    from turnstile.stress import options, running  # noqa: PLC0415

    given = options.Given(
        local=local,
        preset=preset,
        actions=actions,
        limit=limit,
        executions=executions,
        duration_mix=duration_mix,
        keys=keys,
        submitters=submitters,
        rate=rate,
        faults=faults,
        depths=depths,
        key_counts=key_counts,
        duration=duration,
        seed=seed,
        executors=executors,
        workers=workers,
        lease=lease,
    )
    try:
        asked = options.read(given)
        place = None if local else options.installation(amqp_url, api_url, api_token(os.environ))
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    raise typer.Exit(running.run_to_the_end(asked, place, report, command=sys.argv[1:]))


@app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(help="A report's folder, with its recordings.")],
) -> None:
    """Judge the recordings of a run again, and write its report anew."""
    _require_libraries()
    from turnstile.stress import keeping, running  # noqa: PLC0415

    try:
        report = keeping.judge_again(folder)
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{folder}: not the folder of a report with its recordings ({error}); "
            "expected what 'turnstile stress run --report FOLDER' wrote",
            exit_code=EXIT_USAGE,
        ) from None
    keeping.show(folder, report, running.console_for_lines())
    raise typer.Exit(0 if report.kept else running.EXIT_BROKEN)


def _require_libraries() -> None:
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"{', '.join(missing)} missing: the harness reckons and draws with them, the services do not; "
            "install them with: pip install 'turnstile[stress]'",
            exit_code=EXIT_FAILED,
        )


def main() -> None:
    """Run the command line."""
    run_command_line(app, name="turnstile stress")


if __name__ == "__main__":
    main()
