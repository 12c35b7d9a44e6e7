"""Commands of HTTP over a real database: decided once, in order, answered exactly."""

import asyncio
from uuid import uuid4

import pytest

from tests.support.inbox import (
    ANN,
    Installation,
    command_ids,
    delete,
    numbered,
    request,
)
from tests.support.traffic import until
from turnstile.common.domain.states import Status
from turnstile.executor.inbox import NotDecidedYet


async def test_a_repeated_command_finds_its_answer_and_is_not_decided_again(
    installation: Installation,
) -> None:
    installation.lead()
    await installation.define("action", "a")
    ids = command_ids(3)
    first = await installation.submit(*numbered(3), command_ids=ids)
    second = await installation.submit(*numbered(3), command_ids=ids)
    assert first == second
    assert await installation.fetch("SELECT count(*)::int FROM ledger.execution") == [(3,)]

    async def is_empty() -> bool:
        return not await installation.fetch("SELECT FROM ledger.inbox")

    await until(is_empty)


async def test_what_nobody_decides_in_time_is_kept_and_decided_later(installation: Installation) -> None:
    ids = command_ids(2)
    with pytest.raises(NotDecidedYet, match="kept, not decided yet") as kept:
        await installation.submit(*numbered(2), command_ids=ids, seconds=0.2)
    assert kept.value.command_ids == tuple(ids)
    installation.lead()
    await installation.define("action", "b")
    answers = await installation.submit(*numbered(2), command_ids=ids)
    # It was decided before the action existed, and stays so.
    assert {each["code"] for each in answers} == {"unknown_action"}
    assert answers[0]["message"].startswith("action_ref: no action 'a'; start a worker that has it")


async def test_a_cancel_of_many_is_done_in_slices_and_others_go_between(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    for _ in range(10):
        await installation.submit(*numbered(1000))
    many = asyncio.create_task(installation.inbox.cancel(range(10_000, 0, -1), None, ANN))
    await until(lambda: installation.fetch("SELECT FROM ledger.execution WHERE status = 'cancelled'"))
    (between,) = await installation.submit(request())
    assert not many.done()
    moves = await many
    assert [each for each, _, _ in moves] == list(range(10_000, 0, -1))
    assert {after for _, _, after in moves} == {Status.CANCELLED}
    assert between["execution_id"] == 10_001
    assert await installation.fetch(
        "SELECT count(*)::int FROM ledger.audit_log WHERE verb = 'cancelled'"
    ) == [(10_000,)]


async def test_an_action_with_much_that_waits_is_deleted_over_several_turns(
    installation: Installation,
) -> None:
    leader = installation.lead().leader
    await installation.define("action", "a", max_concurrent=0)
    await installation.submit(*numbered(1200))
    assert leader.leadership is not None
    before = leader.leadership.number
    (deleted,) = await installation.inbox.decide([delete("action", "a", cancel_max=10_000)])
    assert (deleted["type"], deleted["cancelled"]) == ("deleted", 1200)
    assert leader.leadership.number >= before + 3
    (row,) = await installation.fetch(
        "SELECT count(*) AS ended, count(DISTINCT completed_at) AS turns FROM ledger.execution "
        "WHERE status = 'cancelled'"
    )
    assert (row["ended"], row["turns"] >= 3) == (1200, True)
    verbs = [verb for _, verb, _, _ in await installation.audit()]
    assert (verbs.count("cancelled"), verbs.count("deleted")) == (1200, 1)
    (answer,) = await installation.submit(request())
    assert answer["code"] == "unknown_action"


async def test_old_answers_are_deleted_in_bounded_steps(installation: Installation) -> None:
    await installation.fetch(
        "INSERT INTO ledger.answer SELECT gen_random_uuid(), now() - make_interval(secs => n), ''"
        " FROM generate_series(1, 6000) n"
    )
    await installation.fetch("INSERT INTO ledger.answer VALUES ($1, now() + interval '1 min', '')", uuid4())
    assert [await installation.inbox.prune() for _ in range(3)] == [5000, 1000, 0]
    assert await installation.fetch("SELECT count(*)::int FROM ledger.answer") == [(1,)]
