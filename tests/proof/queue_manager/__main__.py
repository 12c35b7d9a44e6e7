"""Explore the queue manager itself in every configuration, walk through larger systems, and plant bugs.

A violation is printed with a shortest sequence of events that leads to it.
"""

import gc
from functools import partial
from typing import Annotated

import typer

from tests.proof.planted import PlantedBug
from tests.proof.queue_manager.configurations import CONFIGURATIONS, Configuration
from tests.proof.queue_manager.defects import DEFECTS, detection
from tests.proof.queue_manager.explorer import explore
from tests.proof.queue_manager.walks import walk
from tests.proof.trials import Trial, run_trials

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
    trials: list[tuple[str, Trial]] = []
    for make, alive_small, alive_large in CONFIGURATIONS:
        configuration = make(alive or (alive_small if small else alive_large))
        trials.append((configuration.name, partial(_explore, configuration, states)))
    count = (200 if small else 2_000) if walks is None else walks
    if count:
        trials.append((f"{count:,} walks from {first}", partial(_walk, first, count)))
    if defects:
        trials += [(each.name, partial(_missed, each)) for each in DEFECTS]
    raise typer.Exit(run_trials(trials, words=words or ()))


def _explore(configuration: Configuration, states_max: int) -> list[str]:
    report = explore(configuration, states_max=states_max)
    print(report, flush=True)
    return [] if report.violation is None else list(map(str, [report.violation, *report.trace]))


def _walk(first: int, count: int) -> list[str]:
    failed = []
    for seed in range(first, first + count):
        try:
            walk(seed)
        except Exception as error:  # noqa: BLE001
            failed.append(f"walk {seed}: {error!r}")
    return failed


def _missed(bug: PlantedBug) -> list[str]:
    return ["not detected"] if detection(bug) is None else []


if __name__ == "__main__":
    app()
