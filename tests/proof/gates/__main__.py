"""`python -m tests.proof.gates model`: explore every configuration of the model of gates; print the states.

`python -m tests.proof.gates statements --examples N`: random walks of the real statements beside the model.

Exit code 0: all states were reached and none violates a rule. 1: a violation, printed with the shortest
sequence of events that leads to it, or a planted bug that was not detected.
"""

import asyncio
import gc
import secrets
from contextlib import ExitStack
from typing import Annotated

import typer

from tests.proof.gates.configurations import CONFIGURATIONS
from tests.proof.gates.defects import DEFECTS
from tests.proof.gates.explorer import Report, explore
from tests.proof.gates.walks import draw, failure, shortened
from tests.support.protocol import connected
from tests.support.sources import create_tables, servers_of_the_session

app = typer.Typer(add_completion=False)


@app.command()
def statements(
    examples: Annotated[int, typer.Option(min=1, help="Number of walks.")] = 1000,
    first: Annotated[int, typer.Option(help="Number of the first walk.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Operations of each walk.")] = 40,
) -> None:
    """Run the statements beside the model on random walks."""
    with ExitStack() as stack:
        server = stack.enter_context(servers_of_the_session()).postgresql
        name = f"turnstile_gates_{secrets.token_hex(4)}"
        url = server.create_database(name)
        stack.callback(server.drop_database, name)
        create_tables(url)
        failed = asyncio.run(_walk(url, first, examples, steps))
    if failed:
        raise typer.Exit(1)


async def _walk(url: str, first: int, examples: int, steps: int) -> int:
    failed = 0
    async with connected(url) as protocol:
        for seed in range(first, first + examples):
            walk = draw(seed, steps)
            if await failure(protocol, walk) is not None:
                failed += 1
                shorter = await shortened(protocol, walk)
                print(f"walk {seed}, {shorter}\n    {await failure(protocol, shorter)}", flush=True)
    print(f"{examples} walks of {steps} operations, {failed} failed")
    return failed


@app.command()
def model(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only configurations whose name contains one of these.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The sizes that the tests use.")] = False,
    alive: Annotated[
        int | None, typer.Option(min=1, help="Number of live executions, in place of each default.")
    ] = None,
    states: Annotated[int, typer.Option(min=1, help="Stop a configuration after so many states.")] = 150_000,
    defects: Annotated[bool, typer.Option(help="Also run the planted bugs.")] = True,
) -> None:
    """Explore every configuration of the model of gates."""
    # States are values that refer to each other in no circle.
    gc.disable()
    reports = []
    for configuration, alive_small, alive_large in CONFIGURATIONS:
        alive_max = alive or (alive_small if small else alive_large)
        chosen = configuration(alive_max)
        if words and not any(word in chosen.name for word in words):
            continue
        reports.append(explore(chosen, states_max=states))
        _print(reports[-1])
    print(
        f"{sum(r.states for r in reports):,} states, {sum(r.transitions for r in reports):,} transitions, "
        f"{sum(r.seconds for r in reports):.0f} s, {sum(r.violation is not None for r in reports)} violations"
    )
    missed = _missed_defects() if defects else []
    if missed or any(report.violation for report in reports):
        raise typer.Exit(1)


def _print(report: Report) -> None:
    print(report, flush=True)
    for event in report.trace:
        print(f"    {event}", flush=True)


def _missed_defects() -> list[str]:
    reports = {d.name: explore(d.configuration, d.model(d.configuration.system)) for d in DEFECTS}
    missed = [name for name, report in reports.items() if report.violation is None]
    for name in missed:
        print(f"not detected: {name}")
    print(f"planted bugs: {len(reports) - len(missed)} of {len(reports)} detected")
    return missed


if __name__ == "__main__":
    app()
