"""The command line of the benchmarks: which parts, how much of each, and where the results go.

Exit code 0 unless a part fails to run; a missed aim is only printed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console

from benchmarks import (
    depth,
    handover,
    keys,
    limit_bound,
    memory,
    pressure,
    replicas,
    throughput,
    transport,
)
from benchmarks.report import Section, as_json, markdown, print_section
from benchmarks.system import Servers, Sizes
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServers, LocalServersError

Part = Callable[[Servers, Sizes], Awaitable[list[Section]]]

PARTS: Final[Mapping[str, Part]] = {
    "throughput": throughput.measure,
    "limit-bound": limit_bound.measure,
    "keys": keys.measure,
    "replicas": replicas.measure,
    "pressure": pressure.measure,
    "handover": handover.measure,
    "depth": depth.measure,
    "memory": memory.measure,
    "transport": transport.measure,
}

_DEFAULT: Final = Sizes()
_PAGE_WIDTH: Final = 140


def bench(
    *,
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}. [default: all]")
    ] = None,
    executions: Annotated[
        int, typer.Option(min=10, help="Executions of one throughput run.")
    ] = _DEFAULT.executions,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind, in turn.")] = _DEFAULT.rounds,
    queued: Annotated[int, typer.Option(min=3, help="Executions of the handover part.")] = _DEFAULT.queued,
    submits: Annotated[int, typer.Option(min=2, help="Single submits on an idle system.")] = _DEFAULT.submits,
    depth_max: Annotated[int, typer.Option(min=200, help="Longest queue.")] = _DEFAULT.depths[-1],
    turns: Annotated[int, typer.Option(min=5, help="Timed statements of each kind.")] = _DEFAULT.turns,
    waiting: Annotated[
        int, typer.Option(min=10, help="Waiting executions of the memory part.")
    ] = _DEFAULT.waiting,
    messages: Annotated[
        int, typer.Option(min=100, help="Messages of one transport run.")
    ] = _DEFAULT.messages,
    jobs: Annotated[int, typer.Option(min=10, help="Jobs of 20 ms of the limit-bound part.")] = _DEFAULT.jobs,
    keyed: Annotated[
        int, typer.Option(min=10, help="Executions of one run of the keys part.")
    ] = _DEFAULT.keyed,
    keys_max: Annotated[int, typer.Option(min=10, help="Most concurrency keys.")] = _DEFAULT.keys[-1],
    replicated: Annotated[
        int, typer.Option(min=10, help="Executions of one run of the replicas part.")
    ] = _DEFAULT.replicated,
    pressed: Annotated[
        int, typer.Option(min=6, help="Executions while a snapshot is held open; a sixth beside others.")
    ] = _DEFAULT.pressed,
    overload_seconds: Annotated[
        float, typer.Option(min=0.5, help="Duration of the overload; 300 for a verdict.")
    ] = _DEFAULT.overload_seconds,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the metrics to this file too.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to this file too.")
    ] = None,
) -> None:
    """Measure this machine's Turnstile on private servers, in about ten minutes."""
    chosen = parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(PARTS)}", param_hint="PARTS")
    sizes = replace(
        _DEFAULT,
        executions=executions,
        rounds=rounds,
        queued=queued,
        submits=submits,
        depths=_up_to(_DEFAULT.depths, depth_max),
        turns=turns,
        waiting=waiting,
        messages=messages,
        jobs=jobs,
        keyed=keyed,
        keys=_up_to(_DEFAULT.keys, keys_max),
        replicated=replicated,
        pressed=pressed,
        overload_seconds=overload_seconds,
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


def _up_to(usual: Sequence[int], most: int) -> tuple[int, ...]:
    return (*(number for number in usual if number < most), most)


async def _measure(chosen: Sequence[str], sizes: Sizes) -> list[Section]:
    console = Console(width=None if Console().is_terminal else _PAGE_WIDTH, highlight=False)
    sections = []
    # Starting the servers blocks the event loop, which is idle here.
    with LocalServers.start(durable=True) as local:
        servers = Servers.of(local)
        for name in chosen:
            # Against a part that hangs; the overload takes as long as it is told, and so may its backlog.
            async with asyncio.timeout(sizes.deadline_seconds * 5 + sizes.overload_seconds * 4):
                found = await PARTS[name](servers, sizes)
            for section in found:
                print_section(console, section)
            sections += found
    return sections


def main() -> None:
    """Run the command line."""
    typer.run(bench)
