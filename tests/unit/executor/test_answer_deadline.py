"""A change without an answer: the error says whether all or part of it may be done, and how to repeat it."""

from uuid import UUID

import pytest

from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.inbox import NotDecidedYet


async def test_a_lost_connection_is_an_unknown_outcome() -> None:
    with pytest.raises(Unavailable, match=r"^database: gone; all or part of it may be done"):
        async with answer_deadline():
            raise Unavailable("database: gone")


async def test_a_request_that_did_not_start_is_not_applied() -> None:
    with pytest.raises(Overloaded, match=r"^3 wait already; nothing was done, repeat it later$"):
        async with answer_deadline():
            raise Overloaded("3 wait already")


async def test_a_change_that_no_leader_has_decided_is_kept_and_can_be_repeated() -> None:
    with pytest.raises(
        Unavailable, match=r"^kept, not decided yet: .*; repeat the request to see its result$"
    ):
        async with answer_deadline():
            raise NotDecidedYet([UUID(int=1)])


async def test_new_executions_that_no_leader_has_decided_are_named() -> None:
    ids = [UUID(int=number) for number in range(5)]
    with pytest.raises(Unavailable) as raised:
        async with answer_deadline(adds_executions=True):
            raise NotDecidedYet(ids)
    named = ", ".join(f"/api/v1/submissions/{each}" for each in ids[:3])
    assert str(raised.value).endswith(
        f"; GET {named} and 2 more to see its result, or repeat it with the same idempotency key"
    )
