"""The command line of the comparison: rounds in which all contestants run in turn.

Exit code 0 unless this project fails to run; the failure of another system is reported, and the rest goes on.
"""

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console

from benchmarks.peers.contestants import CONTESTANTS, TURNSTILE, Contestant
from benchmarks.peers.servers import Servers, all_servers
from benchmarks.peers.session import Counts, run_variant
from benchmarks.peers.tables import Comparison, Entry, markdown, print_all
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServersError

_JOBS: Final = 2000
_HANDED_OVER: Final = 100
_ROUNDS: Final = 3
_SLICES: Final = 5
_DEADLINE_SECONDS: Final = 90.0
_PAGE_WIDTH: Final = 150


def peers(
    *,
    jobs: Annotated[int, typer.Option(min=10, help="Jobs of a load over ten actions.")] = _JOBS,
    handed_over: Annotated[int, typer.Option(min=3, help="Jobs of the load one at a time.")] = _HANDED_OVER,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds; in each, all contestants run in turn.")
    ] = _ROUNDS,
    slices: Annotated[
        int, typer.Option(min=0, help="Further loads with limits while a snapshot is held open; 0: none.")
    ] = _SLICES,
    only: Annotated[str, typer.Option(help="Names, separated by commas. [default: all]")] = "",
    deadline: Annotated[
        float, typer.Option(min=1, help="Timeout of one load in seconds.")
    ] = _DEADLINE_SECONDS,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to this file too.")
    ] = None,
) -> None:
    """Run the same no-op load on this project and on others, side by side."""
    counts = Counts(jobs=jobs, handed_over=handed_over, slices=slices, deadline_seconds=deadline)
    console = Console(width=None if Console().is_terminal else _PAGE_WIDTH, highlight=False)
    chosen = _chosen(only)
    try:
        comparison = uvloop.run(_compare(console, chosen, counts, rounds))
    except LocalServersError as error:
        typer.echo(f"failed to run: {error}", err=True)
        raise typer.Exit(1) from None
    print_all(console, comparison)
    if markdown_file is not None:
        markdown_file.write_text(markdown(comparison), encoding="utf-8")
    if any(entry.failure for entry in comparison.entries if entry.contestant is TURNSTILE):
        raise typer.Exit(1)


def _chosen(only: str) -> Sequence[Contestant]:
    wanted = {name.strip().lower() for name in only.split(",") if name.strip()}
    known = {contestant.name.lower(): contestant for contestant in CONTESTANTS}
    if unknown := wanted - known.keys():
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(known)}", param_hint="--only")
    return [contestant for name, contestant in known.items() if not wanted or name in wanted]


async def _compare(console: Console, chosen: Sequence[Contestant], counts: Counts, rounds: int) -> Comparison:
    busy = f"{os.getloadavg()[0]:.2f}"
    # Starting the servers blocks the event loop, which is idle here.
    with all_servers() as servers:
        circumstances = {
            "on": datetime.now(tz=UTC).date().isoformat(),
            **await asyncio.to_thread(servers.versions),
            "load average before": busy,
        }
        entries = [
            Entry(contestant=contestant, variant=variant, failure=_missing(contestant, servers))
            for contestant in chosen
            for variant in contestant.variants
        ]
        order = list(entries)
        for number in range(1, rounds + 1):
            for entry in order:
                if not entry.failure:
                    await _turn(servers, entry, counts)
                console.print(f"round {number} of {rounds}: {entry.name}: {_summary(entry)}")
            # The previous contestant affects the caches of the next one.
            order.append(order.pop(0))
    return Comparison(entries=entries, counts=counts, rounds=rounds, circumstances=circumstances)


def _missing(contestant: Contestant, servers: Servers) -> str:
    if contestant.needs_redis and servers.redis is None:
        return servers.why_no_redis
    missing = [name for name in contestant.imports if find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


async def _turn(servers: Servers, entry: Entry, counts: Counts) -> None:
    try:
        async with servers.site() as site:
            results = await run_variant(site, entry.contestant, entry.variant, counts)
    except (DidNotHappen, OSError) as failure:
        entry.failure = str(failure) or type(failure).__name__
        return
    for group, run in results.loads.items():
        entry.runs.setdefault(group, []).append(run)
    if results.slices:
        entry.slices.append(results.slices)


def _summary(entry: Entry) -> str:
    if entry.failure:
        return entry.failure
    rates = [f"{group} {runs[-1].per_second:,.0f}/s" for group, runs in entry.runs.items()]
    if entry.slices:
        rates.append(
            "under a snapshot " + " ".join(f"{run.per_second:,.0f}" for run in entry.slices[-1]) + "/s"
        )
    return ", ".join(rates)


def main() -> None:
    """Run the command line."""
    typer.run(peers)
