"""The tables refuse what a wrong leader must never write, by name."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec import structs

from tests.support.ledger import Led, admitted, ended, granted, session_on
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.leader.ports import TurnRefused
from turnstile.executor.leader.records import (
    AttemptRow,
    Checkpoint,
    DefinitionRow,
    EarlyCancelRow,
    LiveRow,
    Turn,
    WorkerRow,
)
from turnstile.executor.sql import text_of

_LIVE = LiveRow(
    id=1,
    action_ref="a",
    key="",
    priority=3,
    status=Status.QUEUED,
    attempt=1,
    failures=1,
    reclaims=0,
    queued_at=1.0,
    expires_at=None,
    due_at=None,
    ttl_seconds=None,
    timeout_seconds=None,
    cancel_reason=None,
    grant=None,
    worker_id=None,
    scheduled_at=None,
    started_at=None,
    held=(),
    is_holding=False,
    is_impatient=False,
    passages=(),
)
_ATTEMPT = AttemptRow(
    execution_id=1,
    attempt=1,
    outcome="failed",
    worker_id="w",
    scheduled_at=1.0,
    started_at=None,
    ended_at=2.0,
    error=None,
)
_WORKER = WorkerRow(
    worker_id="w",
    session=1,
    secret_hash=b"",
    name="w",
    pools=(),
    actions=None,
    concurrency=-1,
    lease_seconds=1.0,
    is_taking=True,
)
_KEY = UUID(int=7)


@pytest.mark.parametrize(
    ("constraint", "fields"),
    [
        ("execution_pkey", {"admitted": [admitted(1)]}),
        ("execution_id_is_positive", {"admitted": [admitted(0)]}),
        ("execution_priority_is_known", {"admitted": [admitted(3, priority=6)]}),
        ("execution_parameters_are_an_object", {"admitted": [admitted(3, parameters=b"[]")]}),
        ("execution_metadata_is_an_object", {"admitted": [admitted(3, metadata=b"[]")]}),
        ("execution_is_granted_elsewhere", {"admitted": [admitted(3, status=Status.RUNNING)]}),
        ("execution_completed_at_iff_terminal", {"admitted": [admitted(3, status=Status.FAILED)]}),
        ("execution_delivery_key_once", {"admitted": [admitted(3, delivery_key=_KEY)]}),
        ("execution_idempotency_key_once", {"admitted": [admitted(3, idempotency_key="k")]}),
        ("execution_completed_at_iff_terminal", {"ended": [ended(1, status=Status.QUEUED)]}),
        ("execution_completed_by_a_worker", {"ended": [ended(1, worker_id=None)]}),
        ("execution_completed_by_a_worker", {"ended": [ended(1, attempt=0)]}),
        ("execution_result_only_when_completed", {"ended": [ended(1, status=Status.FAILED)]}),
        ("execution_error_is_whole", {"ended": [ended(1, error=("Error", "failed"))]}),
        ("turn_admits_reserved_ids", {"admitted": [admitted(1000)]}),
        ("turn_low_id_is_reserved", {"low_id": 1001}),
        ("turn_ends_what_lives", {"ended": [ended(2)]}),
        ("turn_ends_what_lives", {"ended": [ended(999)]}),
        ("turn_ends_what_lives", {"ended": [ended(1), ended(1)]}),
        ("turn_grants_with_new_numbers", {"granted": [granted(0, 5, 1)]}),
        ("granted_has_a_number_for_each", {"granted": [structs.replace(granted(0, 6, 1), counters=(6, 7))]}),
        ("attempt_pkey", {"attempts": [_ATTEMPT, _ATTEMPT]}),
        ("attempt_is_positive", {"attempts": [replace(_ATTEMPT, attempt=0)]}),
        ("live_has_not_ended", {"live": [replace(_LIVE, status=Status.COMPLETED)]}),
        ("live_grant_iff_at_a_worker", {"live": [replace(_LIVE, status=Status.SCHEDULED)]}),
        ("live_grant_iff_at_a_worker", {"live": [replace(_LIVE, grant=Grant(1, 1))]}),
        ("live_delayed_is_due", {"live": [replace(_LIVE, status=Status.DELAYED)]}),
        ("worker_concurrency_is_a_count", {"workers": [_WORKER]}),
        ("definition_kind_is_known", {"definitions": [DefinitionRow(kind="x", name="a", body={})]}),  # type: ignore[arg-type]
        (
            "early_cancel_names_one",
            {
                "early_cancels": [
                    EarlyCancelRow(id=1, execution_id=None, idempotency_key=None, reason="", kept_until=1.0)
                ]
            },
        ),
    ],
)
async def test_a_wrong_write_is_refused_by_name(led: Led, constraint: str, fields: dict[str, Any]) -> None:
    await led.write(
        admitted=[admitted(1), admitted(2, delivery_key=_KEY, idempotency_key="k")],
        reserved_id=1000,
        granted=[granted(led.epoch, 1, 1, 2), granted(led.epoch, 3, 1, 2, 1)],
    )
    await led.write(ended=[ended(2)])
    if "granted" in fields:
        fields = {"granted": [structs.replace(row, epoch=led.epoch) for row in fields["granted"]]}
    with pytest.raises(TurnRefused, match=constraint) as raised:
        await led.write(**fields)
    assert raised.value.execution_ids == ()
    assert await led.waiting_ids() == [1]
    await led.write(ended=[ended(1)])


@pytest.mark.parametrize("number", [2, 4])
async def test_a_turn_has_the_next_number(led: Led, number: int) -> None:
    await led.write()
    await led.write(checkpoint=Checkpoint(totals={}, clocks=(), starts={}))
    with pytest.raises(TurnRefused, match="turn_follows_the_turn_before"):
        await led.ledger.write(Turn(epoch=led.epoch, number=number, at=1.0))


async def test_a_grant_number_is_refused_although_its_row_is_gone(led: Led) -> None:
    await led.admit(1, granted=[granted(led.epoch, 1, 1)])
    await led.write(grants_over=[(led.epoch, 1)])
    with pytest.raises(TurnRefused, match="turn_grants_with_new_numbers"):
        await led.write(granted=[granted(led.epoch, 1, 1)])


async def test_numbers_begin_anew_with_an_epoch(led: Led) -> None:
    await led.admit(1, granted=[granted(led.epoch, 1, 1)])
    epoch = await led.ledger.take_over("a")
    await led.ledger.write(Turn(epoch=epoch, number=1, at=1.0, granted=[granted(epoch, 1, 1)]))


async def test_there_is_one_leader(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        for is_only in ("true", "false"):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError):
                await session.execute(f"INSERT INTO ledger.leadership VALUES ({is_only}, 1, '', now())")


async def test_the_states_are_those_of_the_database(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        assert await session.fetchval("SELECT enum_range(NULL::ledger.status)::text[]") == list(Status)


async def test_every_constraint_and_index_has_its_comment() -> None:
    lines = text_of("leader/tables.sql").splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("CONSTRAINT ", "CREATE INDEX", "CREATE UNIQUE", "CREATE TABLE")):
            assert lines[number - 1].lstrip().startswith("--"), line
