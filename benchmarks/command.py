"""The command line of the benchmarks: which parts, how much of each, and where the results go.

Exit code 0 unless a part fails to run; a missed aim is only printed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from benchmarks import comparisons, hand_over, limits, mixed, pressure, takeover, transport
from benchmarks.report import Section, as_json, console, machine, markdown, print_section
from benchmarks.system import Servers, Sizes
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServers, LocalServersError

Measure = Callable[[Servers, Sizes], Awaitable[list[Section]]]

PARTS: Final[Mapping[str, Sequence[Measure]]] = {
    "throughput": (comparisons.THROUGHPUT.measure,),
    "limit-bound": (comparisons.LIMIT_BOUND.measure, limits.worker_slots),
    "mixed": (mixed.measure,),
    "keys": (comparisons.KEYS.measure,),
    "gates": (comparisons.GATES.measure, limits.rate),
    "replicas": (comparisons.replicas,),
    "pressure": (pressure.measure,),
    "hand-over": (hand_over.measure,),
    "clients": (hand_over.beside_clients,),
    "takeover": (takeover.measure,),
    "transport": (transport.measure,),
}
_DEFAULT: Final = Sizes()


def bench(
    *,
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}. [default: all]")
    ] = None,
    executions: Annotated[
        int, typer.Option(min=10, help="No-op executions of one run; jobs that take time are a share of it.")
    ] = _DEFAULT.executions,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind, there and back.")] = _DEFAULT.rounds,
    clients: Annotated[
        int, typer.Option(min=1, help="HTTP clients beside the hand-over.")
    ] = _DEFAULT.clients,
    held: Annotated[
        int,
        typer.Option(min=1, help="Executions while a snapshot is held open; 200000 for a reliable result."),
    ] = _DEFAULT.held,
    overload_seconds: Annotated[
        float, typer.Option(min=0.5, help="Duration of the overload; 300 for a reliable result.")
    ] = _DEFAULT.overload_seconds,
    loaded: Annotated[
        int, typer.Option(min=10, help="Waiting executions of the takeover part.")
    ] = _DEFAULT.loaded,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the metrics to this file too.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to this file too.")
    ] = None,
) -> None:
    """Measure this machine's Turnstile on private servers, in about fifteen minutes."""
    chosen = parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(PARTS)}", param_hint="PARTS")
    sizes = Sizes(
        executions=executions,
        rounds=rounds,
        clients=clients,
        held=held,
        overload_seconds=overload_seconds,
        loaded=loaded,
    )
    try:
        sections = uvloop.run(_measure(chosen, sizes))
    except (DidNotHappen, LocalServersError) as error:
        typer.echo(f"failed to run: {error}", err=True)
        raise typer.Exit(1) from None
    if json_file is not None:
        json_file.write_text(as_json(sections), encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(sections, machine()), encoding="utf-8")


async def _measure(chosen: Sequence[str], sizes: Sizes) -> list[Section]:
    screen = console()
    sections = []
    # Starting the servers blocks the event loop, which is idle here.
    with LocalServers.start(durable=True) as local:
        for measure in [each for name in chosen for each in PARTS[name]]:
            # Ends a part that hangs. The overload lasts as long as its option says, and so may its backlog.
            async with asyncio.timeout(sizes.deadline_seconds * 5 + sizes.overload_seconds * 4):
                found = await measure(Servers.of(local), sizes)
            for section in found:
                print_section(screen, section)
            sections += found
    return sections
