"""`python -m benchmarks.peers`: rounds in which all variants run in turn, each alone on the machine.

Exit code 0 unless a variant fails to run; a missed aim is only printed.
"""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.console import Console

from benchmarks.peers.job import Group
from benchmarks.peers.tables import Comparison, sections
from benchmarks.peers.variants import VARIANTS, run_variant
from benchmarks.report import console, machine, markdown, print_section
from benchmarks.system import Servers
from benchmarks.waiting import DidNotHappen
from turnstile.localservers import LocalServers, LocalServersError

_HANDED_OVER_SHARE: Final = 20
"""The load one at a time has the 20th part of the jobs of the others."""


def peers(
    *,
    jobs: Annotated[int, typer.Option(min=60, help="Jobs of a load over ten actions.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, all variants run in turn.")] = 3,
    deadline: Annotated[float, typer.Option(min=1, help="Timeout of one load in seconds.")] = 90.0,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables to this file too.")
    ] = None,
) -> None:
    """Run the same no-op load on this project and on PgQueuer, side by side."""
    screen = console()
    try:
        comparison = uvloop.run(_compare(screen, jobs, rounds, deadline))
    except (DidNotHappen, LocalServersError) as error:
        typer.echo(f"failed to run: {error}", err=True)
        raise typer.Exit(1) from None
    found = sections(comparison)
    for section in found:
        print_section(screen, section)
    if markdown_file is not None:
        markdown_file.write_text(markdown(found, comparison.circumstances), encoding="utf-8")


async def _compare(screen: Console, jobs: int, rounds: int, deadline_seconds: float) -> Comparison:
    busy = f"{os.getloadavg()[0]:.2f}"
    # Starting the servers blocks the event loop, which is idle here.
    with LocalServers.start(durable=True) as local:
        circumstances = {
            "on": datetime.now(tz=UTC).date().isoformat(),
            **await asyncio.to_thread(local.versions),
            "load average before": busy,
            **machine("pgqueuer"),
        }
        comparison = Comparison(
            jobs=jobs, handed_over=jobs // _HANDED_OVER_SHARE, rounds=rounds, circumstances=circumstances
        )
        counts = dict.fromkeys(Group, jobs) | {Group.SINGLE: comparison.handed_over}
        order = list(VARIANTS)
        for number in range(1, rounds + 1):
            for variant in order:
                found = await run_variant(Servers.of(local), variant, counts, deadline_seconds)
                for group, run in found.items():
                    comparison.add(variant, group, run)
                rates = ", ".join(f"{group} {run.per_second:,.0f}/s" for group, run in found.items())
                screen.print(f"round {number} of {rounds}: {variant.name}: {rates}")
            # The previous variant affects the caches of the next one.
            order.append(order.pop(0))
    return comparison


if __name__ == "__main__":
    typer.run(peers)
