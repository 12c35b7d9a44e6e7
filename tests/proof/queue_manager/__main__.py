"""Explore every configuration of the queue manager, walk through larger systems, and plant bugs."""

import gc
from typing import Annotated

import typer

from tests.proof.queue_manager.configurations import CONFIGURATIONS
from tests.proof.queue_manager.explorer import Report, explore

app = typer.Typer(add_completion=False)


@app.command()
def main(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only configurations whose name contains one of these.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The sizes that the tests use.")] = False,
    alive: Annotated[int | None, typer.Option(min=1, help="Live executions, in place of each default.")] = None,
    states: Annotated[int, typer.Option(min=1, help="Stop a configuration after so many states.")] = 20_000,
) -> None:
    """Explore, walk and plant bugs. Exit code 1: a violation, or a planted bug that was not caught."""
    gc.freeze()
    reports: list[Report] = []
    for configuration, alive_small, alive_large in CONFIGURATIONS:
        chosen = configuration(alive or (alive_small if small else alive_large))
        if words and not any(word in chosen.name for word in words):
            continue
        reports.append(explore(chosen, states_max=states))
        print(reports[-1], flush=True)
        for event in reports[-1].trace:
            print(f"    {event}", flush=True)
    print(
        f"{sum(r.states for r in reports):,} states, {sum(r.transitions for r in reports):,} transitions, "
        f"{sum(r.seconds for r in reports):.0f} s, {sum(r.violation is not None for r in reports)} violations"
    )
    if any(report.violation for report in reports):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
