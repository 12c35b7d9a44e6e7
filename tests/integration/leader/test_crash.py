"""The server crashes: a load finds every acknowledged turn, and at most the one without an answer."""

import asyncio
from random import Random
from typing import Literal

import pytest

from tests.support.ledger import Led, admitted, ended, granted, ledger_on, living, session_on
from turnstile.executor.leader.ports import NewestTurn, OutcomeUnknown
from turnstile.executor.leader.records import Journal
from turnstile.localservers import PostgresServer
from turnstile.migrations.run import migrate


@pytest.mark.parametrize(
    ("crash", "seed"), [("kill", 1), ("immediate", 2), ("kill", 3)], ids=["killed", "stopped", "killed again"]
)
async def test_acknowledged_turns_survive_a_crash_of_the_server(
    own_postgresql: PostgresServer, crash: Literal["kill", "immediate"], seed: int
) -> None:
    name = f"crash_{seed}"
    url = await asyncio.to_thread(own_postgresql.create_database, name)
    await migrate(url)
    async with session_on(url) as session:
        # Without a commit that waits for the disk, the last turns would be lost.
        await session.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with ledger_on(url) as ledger:
        led = await Led.by(ledger)
        writing = asyncio.create_task(_write_until_it_fails(led))
        await asyncio.sleep(Random(seed).uniform(0.3, 0.8))
        if crash == "kill":
            await asyncio.to_thread(own_postgresql.kill)
        else:
            await asyncio.to_thread(own_postgresql.stop, "immediate")
        sent = await writing
        await asyncio.to_thread(own_postgresql.restart)
        epoch = await ledger.take_over("a")
        newest = await ledger.newest_turn()
        loaded = await ledger.load(epoch)
    assert newest in (
        NewestTurn(epoch=led.epoch, number=led.number),
        NewestTurn(epoch=led.epoch, number=sent),
    )
    last = newest.number
    assert last > 10, "it wrote turns before the crash"
    # Turn n admits 2n - 1 and 2n, and ends 2n - 3: what lives follows from its number alone.
    assert [row.id for row in living(loaded)] == [*range(2, 2 * last - 1, 2), 2 * last - 1, 2 * last]
    assert [journal.totals["a"] for journal in loaded.journals] == [(2 * n, n) for n in range(1, last + 1)]
    assert [(row.epoch, row.counter) for row in loaded.grants] == [(led.epoch, last)]


async def _write_until_it_fails(led: Led) -> int:
    """Write turns; return the number of the one without an answer."""
    while True:
        n = led.number + 1
        try:
            await led.write(
                admitted=[admitted(2 * n - 1), admitted(2 * n)],
                ended=[ended(2 * n - 3)] if n > 1 else [],
                granted=[granted(led.epoch, n, 2 * n - 1)],
                grants_over=[(led.epoch, n - 1)] if n > 1 else [],
                reserved_id=2 * n + 1,
                journal=Journal(totals={"a": (2 * n, n)}),
            )
        except OutcomeUnknown:
            return n
