"""A flood of messages that cannot be used is a few lines in the log, with a count."""

import logging
from datetime import UTC, datetime
from uuid import UUID

import pytest

from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.webhooks import deliverer
from turnstile.executor.webhooks.deliveries import Claim, DeliveryResult


def test_a_dead_receiver_is_a_line_a_minute_until_it_accepts_a_webhook(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, event in (("_POSTPONED", "webhook_postponed"), ("_FAILED", "webhook_failed")):
        monkeypatch.setattr(deliverer, name, Episodes(logging.getLogger("turnstile.executor"), event))
    for origin in ("http://a", "http://b"):
        for state in ("pending", "failed"):
            for number in range(100):
                deliverer._report(_result(origin, number, state), applied=True)
    shown = [(each.getMessage(), each.__dict__["receiver"]) for each in caplog.records]
    assert shown == [
        ("webhook_postponed", "http://a"),
        ("webhook_failed", "http://a"),
        ("webhook_postponed", "http://b"),
        ("webhook_failed", "http://b"),
    ]
    caplog.clear()
    caplog.set_level(logging.INFO, "turnstile.executor")
    deliverer._report(_result("http://a", 1, "delivered"), applied=True)
    assert [(each.getMessage(), each.__dict__["count"]) for each in caplog.records] == [
        ("webhook_postponed_over", 99),
        ("webhook_failed_over", 99),
    ]


def _result(origin: str, number: int, state: str) -> DeliveryResult:
    claim = Claim(
        execution_id=number,
        event_id=UUID(int=number),
        url=f"{origin}/{number}",
        attempts=1,
        origin=origin,
        claimed_until=datetime.now(UTC),
    )
    error = None if state == "delivered" else "refused"
    return DeliveryResult(claim=claim, state=state, status=None, error=error, delay_seconds=1.0)  # type: ignore[arg-type]
