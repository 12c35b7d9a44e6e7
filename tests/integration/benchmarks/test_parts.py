"""Every part runs at a tiny size: the shorter ones in `make test`, all of them in `make whole`."""

from collections.abc import Awaitable, Callable

import pytest

from benchmarks import pressure, system
from benchmarks.command import PARTS
from benchmarks.report import Aim, Row, Section, markdown
from benchmarks.system import Sizes
from tests.support.sources import Servers
from turnstile.localservers import LocalServers

LEFT_OUT = (
    *(
        "clients",
        "gates",
        "hand-over",
        "keys",
        "limit-bound",
        "memory",
        "mixed",
        "rates",
        "replicas",
        "submissions",
    ),
    *("takeover", "throughput"),
)
"""Those that take seconds even so."""
MET = Row(name="", unit="", cells={"": 0.0}, aims=(Aim(at_most=0),))
TINY = Sizes(
    executions=40,
    queued=5,
    submits=3,
    clients=4,
    waiting=40,
    loaded=40,
    messages=200,
    jobs=40,
    mixed=40,
    paced_seconds=0.1,
    keyed=40,
    keys_max=20,
    gated=40,
    rated_seconds=0.2,
    executors=(1, 2),
    submitted=40,
    replicated=40,
    held=240,
    pressed=40,
    overload_seconds=0.5,
)


def check(sections: list[Section]) -> None:
    assert all(row.cells for section in sections for row in section.rows)
    assert all(set(row.cells) <= set(section.columns) for section in sections for row in section.rows)
    assert markdown(sections, {})


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(name, marks=[pytest.mark.whole] if name in LEFT_OUT else [])
        for name in PARTS
        if name != "pressure"
    ],
)
async def test_a_part_measures_every_row(servers: Servers, part: str) -> None:
    check(await PARTS[part](system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq), TINY))


@pytest.mark.whole
@pytest.mark.parametrize("condition", [pressure.snapshot_open, pressure.overload])
async def test_a_condition_is_compared_with_the_run_before_it(
    servers: Servers, condition: Callable[[system.Servers, Sizes], Awaitable[Section]]
) -> None:
    section = await condition(system.Servers(postgresql=servers.postgresql, rabbitmq=servers.rabbitmq), TINY)
    check([section])
    rows = {row.name: row for row in section.rows}
    assert set(rows["rate, ratio to before"].cells) == set(section.columns) - {"before"}
    assert rows.get("starts out of order", MET).meets_aims()
    assert rows.get("running above the limit", MET).meets_aims()


@pytest.mark.whole
async def test_the_load_ends_beside_every_neighbour(own_servers: Callable[..., LocalServers]) -> None:
    # Servers of its own: a neighbour takes all connections.
    section = await pressure.neighbours(system.Servers.of(own_servers()), TINY)
    check([section])
    rows = {row.name: row for row in section.rows}
    assert rows["sessions killed"].cells["2 sessions killed/s"] >= 1
    assert rows["connections taken"].cells["no free connection"] > 10
    assert rows["scans per second"].cells["4 readers"] > 0
    assert set(rows["CPU of PostgreSQL, ratio to before"].cells) == set(section.columns)
