"""Every part runs at a tiny size."""

from collections.abc import Callable

import pytest

from benchmarks import system
from benchmarks.command import PARTS
from benchmarks.report import Section, markdown
from benchmarks.system import Sizes
from tests.support.sources import Servers
from turnstile.localservers import LocalServers

PRESSURE = "pressure"
TINY = Sizes(
    executions=40,
    queued=5,
    submits=3,
    depths=(100, 200),
    turns=5,
    waiting=40,
    messages=200,
    jobs=40,
    keyed=40,
    keys=(2, 20),
    executors=(1, 2),
    replicated=40,
    pressed=240,
    overload_seconds=0.5,
)


def check(sections: list[Section]) -> None:
    assert all(row.cells for section in sections for row in section.rows)
    assert all(set(row.cells) <= set(section.columns) for section in sections for row in section.rows)
    assert markdown(sections)


@pytest.mark.parametrize("part", [name for name in PARTS if name != PRESSURE])
async def test_a_part_measures_every_row(servers: Servers, part: str) -> None:
    check(await PARTS[part](system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq), TINY))


async def test_pressure_measures_every_row_and_keeps_order_and_limits(
    own_servers: Callable[..., LocalServers],
) -> None:
    # Servers of its own: it takes all connections.
    sections = await PARTS[PRESSURE](system.Servers.of(own_servers()), TINY)
    check(sections)
    rows = {row.name: row for section in sections for row in section.rows}
    assert rows["grants out of order"].meets_aims()
    assert rows["slots above the limit"].meets_aims()
    assert rows["sessions killed"].cells["2 sessions killed/s"] >= 1
    assert rows["connections taken"].cells["no free connection"] > 10
    assert rows["scans per second"].cells["4 readers"] > 0
