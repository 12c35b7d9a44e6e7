"""Actions submitted from code, against real executors and workers.

Whole services: a typed result is written by a worker and read by a client.
"""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.actions import Parcel, gate, misdeclared, noop, scripted, shipped
from tests.support.environment import Environment
from turnstile.client import (
    AsyncClient,
    AsyncHandle,
    Client,
    ExecutionFailed,
    InvalidResult,
    Rejected,
    Status,
    use_client,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

_AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("transport", "blocking"), [("broker", True), ("http", False)])
async def test_a_handle_has_the_typed_result(env: Environment, transport: str, blocking: bool) -> None:
    amqp_url, http_url = env.amqp_url if transport == "broker" else None, env.system.http_url
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        if blocking:
            # Its thread serves the tasks of this loop as well as blocking calls.
            client = stack.enter_context(Client(amqp_url=amqp_url, http_url=http_url))
            stack.enter_context(use_client(client))
        else:
            own = AsyncClient(amqp_url=amqp_url, http_url=http_url)
            stack.enter_context(use_client(await stack.enter_async_context(own)))
        handle = await shipped.submit(number=7, at=_AT)
        assert await handle.result(timeout="30s") == Parcel(7, _AT)
        assert await handle.status() is Status.COMPLETED
        assert (await handle.wait()).execution_id == handle.id == handle.execution_id

        failing = await scripted.with_options(metadata={"who": "me"}).submit(steps=["PERMANENT"])
        with pytest.raises(ExecutionFailed, match="as the script says"):
            await failing.result()
        assert (await failing.get()).metadata == {"who": "me"}
        with pytest.raises(InvalidResult, match="result: expected a whole number"):
            await (await misdeclared.submit()).result()

        handles = await noop.submit_many([{"number": number} for number in range(20)])
        results = [await each.result() for each in handles if not isinstance(each, Rejected)]
        assert results == list(range(20))


async def test_events_end_with_the_terminal_status(env: Environment, tmp_path: Path) -> None:
    file = tmp_path / "gate"
    async with asyncio.timeout(60), AsyncClient(http_url=env.system.http_url) as client:
        with use_client(client):
            first = await gate.submit(file=str(file))
            second = await gate.submit(file=str(file))
        seen: list[Status] = []
        async for event in second.events():
            seen.append(event.status)
            if event.status is Status.QUEUED:
                file.touch()
        assert (seen[0], seen[-1]) == (Status.QUEUED, Status.COMPLETED)
        assert [each.status async for each in first.events()] == [Status.COMPLETED]
        unknown: AsyncHandle[object] = client.handle(2**40, object)
        with pytest.raises(Rejected, match="not_found"):
            _ = [each async for each in unknown.events()]
