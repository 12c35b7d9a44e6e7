"""Commands over crashes: of the leader, the database, an HTTP process; and beside an old snapshot."""

import asyncio
from statistics import median
from time import perf_counter
from uuid import UUID

import asyncpg
import pytest

from tests.support.inbox import (
    Installation,
    command_ids,
    numbered,
    request,
)
from tests.support.ledger import session_on
from tests.support.traffic import until
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.leader.ports import OutcomeUnknown
from turnstile.executor.leader.records import Turn


async def test_a_turn_with_an_unknown_outcome_is_settled_and_answered_once(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    write = leader.ledger.write
    tries = 0

    async def lose_answer(turn: Turn) -> None:
        nonlocal tries
        await write(turn)
        tries += bool(turn.admitted)
        if turn.admitted and tries == 1:
            raise OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(leader.ledger, "write", lose_answer)
    answers = await installation.submit(*numbered(3))
    assert [each["execution_id"] for each in answers] == [1, 2, 3]
    assert [each["execution_id"] for each in await installation.submit(*numbered(1))] == [4]


async def test_two_http_processes_share_the_inbox_and_a_command(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    async with installation.http_process() as other:
        ids = command_ids(20)
        ours, theirs = await asyncio.gather(
            installation.inbox.decide(numbered(20), command_ids=ids),
            other.decide(numbered(20), command_ids=ids),
        )
        assert ours == theirs
        (mine, more) = await asyncio.gather(
            installation.inbox.decide([request()]), other.decide([request(parameters={"n": 1})])
        )
    assert sorted(each["execution_id"] for each in (*ours, *mine, *more)) == list(range(1, 23))


async def test_commands_go_on_after_all_sessions_were_ended(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    await installation.submit(request())
    for _ in range(3):
        async with session_on(installation.url) as admin:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        ids = command_ids(10)

        async def are_decided(ids: list[UUID] = ids) -> bool:
            try:
                return bool(await installation.inbox.decide(numbered(10), command_ids=ids))
            except (Unavailable, asyncpg.PostgresError):
                return False

        await until(are_decided)
    async with session_on(installation.url) as session:
        assert await session.fetchval("SELECT count(*) FROM ledger.execution") == 31


async def test_an_old_snapshot_does_not_slow_commands(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    async with session_on(installation.url) as reader:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await reader.fetch("SELECT count(*) FROM ledger.execution")
        before = await _seconds(installation)
        for _ in range(20):
            await installation.submit(*numbered(1000))
        after = await _seconds(installation)
    # A poll that read all dead rows would take several times as long.
    assert after < 2.5 * before + 0.01


async def _seconds(installation: Installation) -> float:
    found = []
    for _ in range(30):
        began_at = perf_counter()
        await installation.submit(request())
        found.append(perf_counter() - began_at)
    return median(found)
