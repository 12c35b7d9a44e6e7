"""`FakeClient`: the application under test submits, nothing runs, and the test chooses what comes back."""

import asyncio
from collections.abc import Iterator

import pytest

from turnstile import ExecutionFailed, Rejected
from turnstile.client import current_client
from turnstile.testing import FakeClient
from turnstile.worker import Context, action


@action("faked.render", max_concurrent=1)
async def render(context: Context, customer_id: int, pages: int = 1) -> dict[str, int]:
    raise AssertionError("a fake client runs nothing")


@pytest.fixture
def fake() -> Iterator[FakeClient]:
    with FakeClient() as client:
        yield client


def test_submissions_are_recorded_with_everything_that_was_given(fake: FakeClient) -> None:
    handle = render.with_options(priority=1, metadata={"order": "A-17"}).submit_sync(customer_id=7)
    current_client().submit("by.name", {"x": [1, 2]}, idempotency_key="once")
    assert [(one.action_ref, one.parameters) for one in fake.submitted] == [
        ("faked.render", {"customer_id": 7}),
        ("by.name", {"x": [1, 2]}),
    ]
    first, second = fake.submitted
    assert (handle.id, first.request.priority, first.request.metadata) == (1, 1, {"order": "A-17"})
    assert second.request.idempotency_key == "once"


def test_an_outcome_is_played_for_each_action(fake: FakeClient) -> None:
    fake.completes("faked.render", {"pages": 3})
    assert render.submit_sync(customer_id=7).result(timeout="5s") == {"pages": 3}
    fake.fails("faked.render", "no such customer", error_type="NotFound")
    with pytest.raises(ExecutionFailed, match="NotFound: no such customer"):
        render.submit_sync(customer_id=8).result(timeout="5s")


async def test_a_held_execution_ends_when_the_test_says_so(fake: FakeClient) -> None:
    fake.holds("faked.render")
    handle = await render.submit(customer_id=7)
    assert await handle.status() == "queued"
    waiting = asyncio.create_task(handle.result())
    fake.complete(handle.id, {"pages": 9})
    assert await waiting == {"pages": 9}
    other = await render.submit(customer_id=8)
    await other.cancel()
    assert (await other.wait(timeout="5s")).status == "cancelled"
    assert [one.id for one in fake.list(status=["cancelled"]).items] == [other.id]


def test_a_wrong_request_is_rejected_as_by_an_executor(fake: FakeClient) -> None:
    with pytest.raises(Rejected, match="priority"):
        fake.submit("by.name", priority=9)
    with pytest.raises(Rejected, match="does not answer"):
        fake.get(4711)
    assert fake.submitted == []
