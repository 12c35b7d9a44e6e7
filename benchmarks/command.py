"""The command line of the benchmarks: which parts, how much of each, and where the figures go.

Exit code 0 unless something failed to run: a missed aim is printed, not punished.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console

from benchmarks import depth, handover, memory, slot_numbers, statements, throughput, transport
from benchmarks.ground import Ground
from benchmarks.measures import Section
from benchmarks.report import as_json, markdown, print_section
from benchmarks.sizes import Sizes
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServers, LocalServersError

Part = Callable[[Ground, Sizes], Awaitable[list[Section]]]

PARTS: Final[Mapping[str, Part]] = {
    "throughput": throughput.measure,
    "handover": handover.measure,
    "depth": depth.measure,
    "memory": memory.measure,
    "statements": statements.measure,
    "slot-numbers": slot_numbers.measure,
    "transport": transport.measure,
}

_DEFAULT: Final = Sizes()
_PAGE_WIDTH: Final = 140


def bench(
    *,
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}. [default: all]")
    ] = None,
    executions: Annotated[int, typer.Option(min=10, help="Of one throughput run.")] = _DEFAULT.executions,
    rounds: Annotated[int, typer.Option(min=1, help="Throughput runs of each kind.")] = _DEFAULT.rounds,
    queued: Annotated[int, typer.Option(min=3, help="Executions handed over.")] = _DEFAULT.queued,
    submits: Annotated[int, typer.Option(min=2, help="Lone submits.")] = _DEFAULT.submits,
    depth_max: Annotated[int, typer.Option(min=200, help="Deepest line.")] = _DEFAULT.depths[-1],
    turns: Annotated[int, typer.Option(min=5, help="Timed statements of each kind.")] = _DEFAULT.turns,
    waiting: Annotated[int, typer.Option(min=10, help="Waiting while memory is read.")] = _DEFAULT.waiting,
    messages: Annotated[int, typer.Option(min=100, help="Of one transport run.")] = _DEFAULT.messages,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write tables there too.")] = None,
) -> None:
    """Measure this machine's Turnstile on private servers, in under four minutes."""
    chosen = parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(PARTS)}", param_hint="PARTS")
    sizes = replace(
        _DEFAULT,
        executions=executions,
        rounds=rounds,
        queued=queued,
        submits=submits,
        depths=tuple(sorted({*(d for d in _DEFAULT.depths if d < depth_max), depth_max})),
        turns=turns,
        waiting=waiting,
        messages=messages,
    )
    try:
        sections = uvloop.run(_measure(chosen, sizes))
    except (DidNotHappen, LocalServersError) as error:
        typer.echo(f"failed to run: {error}", err=True)
        raise typer.Exit(1) from None
    if json_file is not None:
        json_file.write_text(as_json(sections), encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(sections), encoding="utf-8")


async def _measure(chosen: Sequence[str], sizes: Sizes) -> list[Section]:
    console = Console(width=None if Console().is_terminal else _PAGE_WIDTH, highlight=False)
    sections = []
    # Starting servers blocks the loop, which has nothing else to do yet.
    with LocalServers.start(durable=True) as servers:
        ground = Ground.over(servers)
        for name in chosen:
            async with asyncio.timeout(sizes.deadline_seconds * 3):
                found = await PARTS[name](ground, sizes)
            for section in found:
                print_section(console, section)
            sections += found
    return sections


def main() -> None:
    """Run the command line."""
    typer.run(bench)
