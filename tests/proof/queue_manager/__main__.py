"""Explore the queue manager itself in every configuration, walk through larger systems, and plant bugs.

Exit code 0: nothing violates a rule, and each planted bug was detected. 1: a violation, printed with a
shortest sequence of events that leads to it, or a planted bug that was not detected.
"""

import gc
import time
from typing import Annotated

import typer

from tests.proof.queue_manager.configurations import CONFIGURATIONS
from tests.proof.queue_manager.defects import DEFECTS, detection
from tests.proof.queue_manager.explorer import Report, explore
from tests.proof.queue_manager.walks import walk

app = typer.Typer(add_completion=False)


@app.command()
def main(  # noqa: PLR0917
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only configurations and bugs whose name contains one of these."),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Fewer live executions, states and walks.")] = False,
    alive: Annotated[
        int | None, typer.Option(min=1, help="Live executions, in place of each default.")
    ] = None,
    states: Annotated[int | None, typer.Option(min=1, help="Most states of a configuration.")] = None,
    walks: Annotated[int | None, typer.Option(min=0, help="Number of random walks.")] = None,
    first: Annotated[int, typer.Option(help="Number of the first walk.")] = 0,
    defects: Annotated[bool, typer.Option(help="Also plant bugs.")] = True,
) -> None:
    """Explore, walk and plant bugs."""
    gc.freeze()
    states = states or (1_500 if small else 10_000)
    reports = []
    for make, alive_small, alive_large in CONFIGURATIONS:
        configuration = make(alive or (alive_small if small else alive_large))
        if words and not any(word in configuration.name for word in words):
            continue
        reports.append(explore(configuration, states_max=states))
        _print(reports[-1])
    print(
        f"{sum(r.states for r in reports):,} states, {sum(r.transitions for r in reports):,} transitions, "
        f"{sum(r.seconds for r in reports):.0f} s, {sum(r.violation is not None for r in reports)} violations"
    )
    failed = _walk(first, walks if walks is not None else 0 if words else 200 if small else 2_000)
    missed = _missed_defects(words) if defects else 0
    if failed or missed or any(report.violation for report in reports):
        raise typer.Exit(1)


def _print(report: Report) -> None:
    print(report, flush=True)
    for event in report.trace:
        print(f"    {event}", flush=True)


def _walk(first: int, count: int) -> int:
    began, grants, failed = time.monotonic(), 0, 0
    for seed in range(first, first + count):
        try:
            grants += walk(seed)
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"walk {seed}: {error!r}", flush=True)
    print(
        f"{count:,} walks, {grants:,} grants, {time.monotonic() - began:.0f} s, {failed} failed", flush=True
    )
    return failed


def _missed_defects(words: list[str] | None) -> int:
    began, count, missed = time.monotonic(), 0, 0
    for defect in DEFECTS:
        if words and not any(word in defect.name for word in words):
            continue
        count += 1
        if detection(defect) is None:
            missed += 1
            print(f"not detected: {defect.name}", flush=True)
    print(f"planted bugs: {count - missed} of {count} detected, {time.monotonic() - began:.0f} s")
    return missed


if __name__ == "__main__":
    app()
