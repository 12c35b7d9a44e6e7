"""Every part runs at a tiny size: `transport` in `make test`, all of them in `make whole`."""

from collections.abc import Callable

import pytest

from benchmarks import pressure, system
from benchmarks.command import PARTS
from benchmarks.report import Section, markdown
from benchmarks.system import Sizes
from tests.support.sources import Servers
from turnstile.localservers import LocalServers

TINY = Sizes(executions=40, clients=4, held=40, overload_seconds=0.5, loaded=40, executors=(1, 2))


def check(sections: list[Section]) -> None:
    assert all(row.cells for section in sections for row in section.rows)
    assert all(set(row.cells) <= set(section.columns) for section in sections for row in section.rows)
    assert markdown(sections, {})


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(name, marks=[] if name == "transport" else [pytest.mark.whole])
        for name in PARTS
        if name != "pressure"
    ],
)
async def test_a_part_measures_every_row(servers: Servers, part: str) -> None:
    shared = system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq)
    for measure in PARTS[part]:
        check(await measure(shared, TINY))


@pytest.mark.whole
async def test_an_overload_is_compared_with_runs_before_and_after_it(servers: Servers) -> None:
    shared = system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq)
    section = await pressure.overload(shared, TINY)
    check([section])
    rows = {row.name: row for row in section.rows}
    assert set(rows["rate, ratio to without"].cells) == set(section.columns) - {"without"}
    assert rows["starts out of order"].meets_aims()
    assert rows["running above the limit"].meets_aims()


@pytest.mark.whole
async def test_the_load_ends_beside_every_neighbour(own_servers: Callable[..., LocalServers]) -> None:
    # Servers of its own: a neighbour takes all connections.
    section = await pressure.neighbours(system.Servers.of(own_servers()), TINY)
    check([section])
    rows = {row.name: row for row in section.rows}
    assert rows["sessions killed"].cells["2 sessions killed/s"] >= 1
    assert rows["connections taken"].cells["no free connection"] > 10
    assert rows["scans of the readers"].cells["4 readers"] > 0
    assert rows["executions under the snapshot before"].cells["a snapshot held open"] == TINY.held
    assert set(rows["CPU of PostgreSQL, ratio to without"].cells) == set(section.columns)
