"""The deliverer over a real database and receiver: due deliveries are posted once until they end."""

from typing import Any

import pytest
from pydantic_core import from_json

from tests.integration.webhooks.deliveries import completed, delivering, ended
from tests.integration.webhooks.receiver import Receiver
from tests.support.traffic import until
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.metrics import BACKGROUND_FAILURES, WEBHOOK_ATTEMPTS
from turnstile.executor.webhooks.deliveries import STATEMENTS, Deliveries


async def test_the_body_is_that_of_the_completion_message(
    database: Database, database_url: str, receiver: Receiver
) -> None:
    (one,) = await completed(database, receiver.url)
    async with delivering(database_url):
        row = (await ended(database))[one]
    (got,) = receiver.received
    body = from_json(got.body)
    assert (body["execution_id"], body["action_ref"], body["status"]) == (one, "a", "completed")
    assert (body["result"], body["error"], body["attempt"]) == ({"total": 7}, None, 1)
    assert got.headers["webhook-id"] == str(row["event_id"])
    assert got.headers["webhook-signature"].startswith("v1,")
    assert (row["state"], row["attempts"], row["last_status"]) == ("delivered", 1, 200)


async def test_a_round_that_fails_is_counted_and_the_next_delivers(
    database: Database,
    database_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    claim, before = Deliveries.claim, BACKGROUND_FAILURES.values.get(("deliver_webhooks",), 0)

    async def fail_once(record: Deliveries, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Deliveries, "claim", claim)
        raise RuntimeError("unexpected")

    monkeypatch.setattr(Deliveries, "claim", fail_once)
    await completed(database, receiver.url)
    async with delivering(database_url):
        await ended(database)
    assert BACKGROUND_FAILURES.values[("deliver_webhooks",)] == before + 1
    assert "webhooks_broken" in [record.getMessage() for record in caplog.records]


async def test_a_claimed_delivery_survives_a_broken_connection_without_waiting_for_its_lease(
    database: Database, database_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Database.fetch

    async def break_once(database: Database, text: str, *arguments: object) -> Any:
        if text == STATEMENTS["completions"]:
            monkeypatch.setattr(Database, "fetch", fetch)
            raise Unavailable("database: terminated")
        return await fetch(database, text, *arguments)

    (one,) = await completed(database, receiver.url)
    monkeypatch.setattr(Database, "fetch", break_once)
    # Longer than a test waits.
    async with delivering(database_url, webhook_timeout=60.0):
        row = (await ended(database))[one]
    assert (row["state"], row["attempts"]) == ("delivered", 1)
    assert Database.fetch is fetch


async def test_a_failed_delivery_is_repeated_with_the_same_event_and_each_post_is_counted_by_its_state(
    database: Database, database_url: str, receiver: Receiver
) -> None:
    before = dict(WEBHOOK_ATTEMPTS.values)
    for status in ("503 Down", "429 Slow down", "204 Done", "410 Gone"):
        receiver.says(status)
    (one,) = await completed(database, receiver.url)
    async with delivering(database_url):
        row = (await ended(database))[one]
        assert (row["state"], row["attempts"]) == ("delivered", 3)
        assert {got.headers["webhook-id"] for got in receiver.received} == {str(row["event_id"])}
        assert len({got.body for got in receiver.received}) == 1
        await completed(database, receiver.url)
        await ended(database, 2)
    grown = {state: count - before[state] for state, count in WEBHOOK_ATTEMPTS.values.items()}
    assert grown == {("pending",): 2, ("delivered",): 1, ("released",): 0, ("failed",): 1}


async def test_a_delivery_of_a_deleted_execution_fails(
    database: Database, database_url: str, receiver: Receiver
) -> None:
    (one,) = await completed(database, receiver.url)
    await database.fetch("DELETE FROM ledger.execution")
    async with delivering(database_url):
        row = (await ended(database))[one]
    assert (row["state"], receiver.received) == ("failed", [])
    assert "not stored" in row["last_error"]


async def test_running_deliveries_are_completed_at_the_stop(
    database: Database, database_url: str, receiver: Receiver
) -> None:
    receiver.delay_seconds = 0.2

    (one,) = await completed(database, receiver.url)
    async with delivering(database_url):
        await until(lambda: receiver.received, "it is received")
    assert (await ended(database))[one]["state"] == "delivered"
