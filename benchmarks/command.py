"""The command line of the benchmarks: which parts, how much of each, and where the results go.

Exit code 0 unless a part fails to run; a missed aim is only printed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, get_origin, get_type_hints

import typer
import uvloop

from benchmarks import (
    clients,
    gates,
    hand_over,
    keys,
    limit_bound,
    memory,
    mixed,
    parameters,
    pressure,
    rates,
    replicas,
    submissions,
    takeover,
    throughput,
    transport,
)
from benchmarks.report import Section, as_json, console, machine, markdown, print_section
from benchmarks.system import Servers, Sizes
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServers, LocalServersError

Part = Callable[[Servers, Sizes], Awaitable[list[Section]]]

PARTS: Final[Mapping[str, Part]] = {
    "throughput": throughput.measure,
    "limit-bound": limit_bound.measure,
    "mixed": mixed.measure,
    "rates": rates.measure,
    "keys": keys.measure,
    "gates": gates.measure,
    "replicas": replicas.measure,
    "pressure": pressure.measure,
    "hand-over": hand_over.measure,
    "clients": clients.measure,
    "submissions": submissions.measure,
    "memory": memory.measure,
    "takeover": takeover.measure,
    "transport": transport.measure,
    "parameters": parameters.measure,
}


def bench(
    *,
    parts: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(PARTS)}. [default: all]")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the metrics to this file too.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to this file too.")
    ] = None,
    **sizes: Any,
) -> None:
    """Measure this machine's Turnstile on private servers, in about fifteen minutes."""
    chosen = parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(PARTS)}", param_hint="PARTS")
    try:
        sections = uvloop.run(_measure(chosen, Sizes(**sizes)))
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
        servers = Servers.of(local)
        for name in chosen:
            # Ends a part that hangs. The overload lasts as long as its option says, and so may its backlog.
            async with asyncio.timeout(sizes.deadline_seconds * 5 + sizes.overload_seconds * 4):
                found = await PARTS[name](servers, sizes)
            for section in found:
                print_section(screen, section)
            sections += found
    return sections


def main() -> None:
    """Run the command line, with an option for each field of `Sizes` that declares one."""
    signature = inspect.signature(bench, eval_str=True)
    parts, json_file, markdown_file, more = signature.parameters.values()
    default = Sizes()
    sizes = [
        more.replace(name=name, kind=parts.kind, default=getattr(default, name), annotation=kind)
        for name, kind in get_type_hints(Sizes, include_extras=True).items()
        if get_origin(kind) is Annotated
    ]
    options = [parts, *sizes, json_file, markdown_file]
    bench.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    typer.run(bench)
