"""The sums of memory and rows are equal after every turn of a random walk, and a lost row shows."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.integration.leader.test_memory_equals_rows import Walk
from tests.support.inbox import Installation, numbered
from tests.support.ledger import Led, session_on
from tests.support.traffic import until
from turnstile.executor.leader.audit import Auditor, Digest, RowAudit, digest_of

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
async def audit(database_url: str) -> AsyncIterator[RowAudit]:
    audit = RowAudit(database_url)
    yield audit
    await audit.close()


async def rows_of(audit: RowAudit) -> Digest:
    async with audit.snapshot() as rows:
        return await rows.digest()


async def test_memory_and_rows_have_the_same_sums(led: Led, audit: RowAudit) -> None:
    walk = Walk(led, 0)
    await walk.begin()
    for number in range(150):
        await walk.step()
        if number % 5 == 0:
            assert digest_of(walk.state).differences(await rows_of(audit)) == []
    digest = digest_of(walk.state)
    assert digest.waiting
    assert digest.recorded
    assert digest.held


CHANGES: Final = {
    "units": "UPDATE ledger.live SET held = NULL",
    "recorded": "UPDATE ledger.live SET failures = failures + 1",
    "held": "DELETE FROM ledger.granted",
    "waiting": "DELETE FROM ledger.waiting",
}


async def test_what_differs_is_named(led: Led, audit: RowAudit, database_url: str) -> None:
    walk = Walk(led, 1)
    await walk.begin()
    for _ in range(150):
        await walk.step()
    digest = digest_of(walk.state)
    async with session_on(database_url) as session:
        for named, change in CHANGES.items():
            before = digest.differences(await rows_of(audit))
            await session.execute(change)
            new = set(digest.differences(await rows_of(audit))) - set(before)
            assert any(each.startswith(f"{named} ") for each in new), new


async def test_a_snapshot_does_not_see_later_turns(led: Led, audit: RowAudit) -> None:
    walk = Walk(led, 2)
    await walk.begin()
    for _ in range(50):
        await walk.step()
    async with audit.snapshot() as rows:
        mine = digest_of(walk.state)
        for _ in range(20):
            await walk.step()
        assert mine.differences(await rows.digest()) == []


async def test_a_leader_whose_memory_differs_from_the_rows_loads_again(database_url: str) -> None:
    async with Installation(database_url) as installation:
        leader = installation.lead().leader
        auditor = leader.turns.auditor = Auditor(database_url, every_seconds=0.05)
        await installation.define("action", "a", max_concurrent=0)
        await installation.submit(*numbered(3))
        await until(lambda: auditor.done >= 2, "two comparisons")
        assert (auditor.found, leader.leadership is None) == ((), False)
        await installation.fetch(
            "DELETE FROM ledger.execution WHERE id IN (SELECT min(id) FROM ledger.execution)"
        )
        await until(lambda: bool(auditor.found), "a difference")
        assert auditor.found[0].startswith("waiting a 3: memory (3, 6, 1), rows (2, 5, 1)")
        done = auditor.done
        await until(lambda: auditor.done >= done + 2, "two comparisons after the load")
        assert leader.leadership is not None
        assert leader.leadership.state.actions["a"].queues[""].length == 2
        await auditor.close()
