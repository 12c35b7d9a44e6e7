"""Each end of an execution with a callback URL leads to one delivery, written with the end."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.served import Served
from tests.support.traffic import until
from turnstile.executor.webhooks.deliveries import Deliveries

URL = "https://example.org/hook"


async def origins(api: Served) -> dict[int, str]:
    rows = await api.database.fetch("SELECT execution_id, origin, state FROM ledger.webhook")
    assert {row["state"] for row in rows} <= {"pending"}
    return {row["execution_id"]: row["origin"] for row in rows}


@pytest.fixture
async def api(api: Served) -> Served:
    api.join()
    await api.define("a")
    return api


async def test_an_end_creates_one_delivery_where_there_is_a_callback_url(api: Served) -> None:
    with_url, without = await api.submit("a", callback_url=URL), await api.submit("a")
    await api.run(without["id"])
    assert await origins(api) == {}
    await api.run(with_url["id"])
    assert await origins(api) == {with_url["id"]: "https://example.org"}


async def test_the_url_of_the_action_is_the_default(api: Served) -> None:
    await api.define("b", callback_url="https://action.example/")
    of_action, own = await api.submit("b"), await api.submit("b", callback_url=URL)
    await api.run(of_action["id"])
    await api.run(own["id"], "failed")
    assert await origins(api) == {of_action["id"]: "https://action.example", own["id"]: "https://example.org"}


async def test_an_execution_that_ends_without_a_worker_is_called_back(api: Served) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    not_due = (await api.submit("a", callback_url=URL, run_at=later))["id"]
    answer = await api.http.post(f"/api/v1/executions/{not_due}/cancel")
    assert answer.status_code == 202
    await api.until_status(not_due, "cancelled")
    assert await origins(api) == {not_due: "https://example.org"}
    posted = await Deliveries(api.database).completions([not_due], result_bytes_max=1024)
    assert b'"status":"cancelled"' in posted[not_due].body


async def test_an_attempt_that_is_retried_creates_no_delivery(api: Served) -> None:
    await api.define("b", retry={"max_attempts": 2, "delay": "1h"})
    one = (await api.submit("b", callback_url=URL))["id"]
    await api.start(one)
    api.worker.end(one, "failed", error=("Broken", "it broke"), is_retryable=True)
    await api.until_status(one, "delayed")
    assert await origins(api) == {}


async def test_an_end_whose_row_is_locked_is_called_back_once_it_is_written(api: Served) -> None:
    one = (await api.submit("a", callback_url=URL))["id"]
    await api.start(one)
    async with api.database.transaction() as session:
        # The turn stores the end beside the row.
        await session.execute("SELECT FROM ledger.execution WHERE id = $1 FOR UPDATE", one)
        api.worker.end(one, "completed", result=b'{"total": 7}')
        await api.until_status(one, "completed")
        assert await origins(api) == {}

    async def is_called_back() -> bool:
        return one in await origins(api)

    await until(is_called_back, "the delivery is written")
    deliveries = Deliveries(api.database)
    posted = await deliveries.completions([one], result_bytes_max=1024)
    assert b'"result":{"total": 7}' in posted[one].body
    cut = await deliveries.completions([one], result_bytes_max=5)
    assert b'"result":null' in cut[one].body
