"""`FakeClient`: the application under test submits, nothing runs, and the test chooses what comes back."""

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from turnstile import ExecutionFailed, Handle, Rejected, Request
from turnstile.client import current_client, submit_in
from turnstile.client.requests import Options
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


def test_what_is_submitted_by_name_is_followed_by_a_handle(fake: FakeClient) -> None:
    fake.completes("by.name", [1])
    handle = fake.submit("by.name", {"x": 1}, idempotency_key="once")
    assert (handle.status(), handle.result(), handle.duplicate) == ("completed", [1], False)
    rejected, typed, named = fake.submit_many(
        [Request(action_ref="no such name"), render.request(customer_id=7), Request(action_ref="by.name")]
    )
    assert isinstance(rejected, Rejected)
    assert isinstance(typed, Handle)
    assert isinstance(named, Handle)
    assert (typed.id, typed.result_type, named.result_type) == (2, dict[str, int], Any)
    assert [event.status for event in named.events()] == ["completed"]
    assert fake.handle(handle, list[int]).result() == [1]
    fake.holds("by.name")
    waiting = fake.submit("by.name")
    waiting.cancel()
    assert waiting.wait(timeout="5s").status == "cancelled"


def test_requests_in_different_traces_are_recorded(fake: FakeClient) -> None:
    traces = [f"00-{number:032x}-b7ad6b7169203331-01" for number in (1, 2)]
    fake.submit_many([Request(action_ref="a", traceparent=each) for each in traces])
    assert [one.action_ref for one in fake.submitted] == ["a", "a"]


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


def test_the_same_idempotency_key_is_the_same_execution(fake: FakeClient) -> None:
    fake.holds("by.name")
    first = fake.submit("by.name", {"x": 1}, idempotency_key="once")
    again = fake.submit("by.name", {"x": 1}, idempotency_key="once")
    assert (first.duplicate, again.duplicate, again.execution_id) == (False, True, first.execution_id)
    with pytest.raises(Rejected, match=r"idempotency_conflict: .*'once' already names execution 1"):
        fake.submit("by.name", {"x": 2}, idempotency_key="once")
    assert len(fake.submitted) == 1


def test_lists_are_filtered_and_an_unknown_filter_is_refused(fake: FakeClient) -> None:
    for customer_id in range(1, 5):
        options: Options = {"priority": 1, "metadata": {"order": "A"}} if customer_id % 2 else {}
        render.with_options(**options).submit_sync(customer_id=customer_id)
    assert [one.id for one in fake.list(metadata={"order": "A"}).items] == [3, 1]
    assert [one.id for one in fake.list(priority=3, status=["completed"]).items] == [4, 2]
    assert fake.list(concurrency_key="7").items == ()
    page = fake.list(limit=3)
    rest = fake.list(limit=3, cursor=page.next_cursor)
    assert ([one.id for one in (*page.items, *rest.items)], rest.next_cursor) == ([4, 3, 2, 1], None)
    with pytest.raises(Rejected, match="the fake client does not list by error"):
        fake.list(error="x")


def test_a_held_execution_shows_its_progress(fake: FakeClient) -> None:
    fake.holds("faked.render")
    handle = render.submit_sync(customer_id=7)
    fake.progress(handle.id, 1, 3, "page 1")
    shown = handle.get()
    assert shown.progress is not None
    assert (shown.status, shown.progress.done, shown.progress.message) == ("running", 1, "page 1")


def test_a_submission_in_a_transaction_is_recorded_at_its_commit(fake: FakeClient) -> None:
    session = fake.session()
    request_id = render.with_options(priority=1).submit_in(session, customer_id=7)
    assert fake.submitted == []
    session.commit()
    submit_in(session, "by.name", {"x": 1})
    session.rollback()
    with pytest.raises(Rejected, match="customer_id"), session:
        render.submit_in(session, customer_id="seven")  # type: ignore[call-overload]
    (one,) = fake.submitted
    assert (one.parameters, one.request.priority, one.request_id) == ({"customer_id": 7}, 1, request_id)
    with pytest.raises(AttributeError, match=r"no 'add'; give it one: fake.session\(session\)"):
        session.add("an order")


async def test_the_session_of_the_application_does_everything_else(fake: FakeClient) -> None:
    real = AsyncMock()
    async with fake.session(real) as session:
        await session.execute("INSERT ...")
        await render.submit_in_async(session, customer_id=7)
        assert fake.submitted == []
    real.execute.assert_awaited_once_with("INSERT ...")
    real.commit.assert_awaited_once_with()
    real.commit.side_effect = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with fake.session(real) as session:
            await render.submit_in_async(session, customer_id=8)
    assert [each.parameters for each in fake.submitted] == [{"customer_id": 7}]


def test_a_wrong_request_is_rejected_as_by_an_executor(fake: FakeClient) -> None:
    with pytest.raises(Rejected, match="priority"):
        fake.submit("by.name", priority=9)
    with pytest.raises(Rejected, match="does not answer"):
        fake.get(4711)
    assert fake.submitted == []
