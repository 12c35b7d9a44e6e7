"""A flood of messages that cannot be used is a few lines in the log, with a count."""

import logging
from datetime import UTC, datetime
from uuid import UUID

import pytest

from turnstile.common.domain.errors import Code
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import completion_listener, instrumentation
from turnstile.executor.completion_listener import CompletionBatch
from turnstile.executor.webhooks import deliverer
from turnstile.executor.webhooks.deliveries import Claim, DeliveryResult


class Unkept:
    """A delivery whose body was not kept: too large."""

    kept = False


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 2), (logging.DEBUG, 10_002)])
def test_ten_thousand_refused_requests_are_a_line_for_each_code_and_each_one_only_at_level_debug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int, lines: int
) -> None:
    logger = logging.getLogger("turnstile.executor")
    fresh = Episodes(logger, "request_refused", level=logging.INFO)
    monkeypatch.setattr(instrumentation, "_REFUSED", fresh)
    caplog.set_level(level, "turnstile.executor")
    for number in range(5_000):
        instrumentation.refused(Code.TOO_LARGE, f"message {number}", f"id-{number}")
        instrumentation.refused(Code.INVALID_MESSAGE, "no JSON", None)
    assert len(caplog.records) == lines
    caplog.clear()
    fresh.all_work()
    assert [each.__dict__["count"] for each in caplog.records] == [4_999, 4_999]


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


def test_refused_completions_are_logged_once_a_minute_for_each_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = Episodes(logging.getLogger("turnstile.executor"), "completion_refused")
    monkeypatch.setattr(completion_listener, "_REFUSED", fresh)
    batch = CompletionBatch()
    for number in range(100):
        batch.refuse(Unkept(), Code.TOO_LARGE, f"message {number}")  # type: ignore[arg-type]
        batch.refuse(Unkept(), Code.INVALID_MESSAGE, "no JSON")  # type: ignore[arg-type]
    assert [(each.__dict__["code"], each.__dict__["reason"]) for each in caplog.records] == [
        ("too_large", "message 0"),
        ("invalid_message", "no JSON"),
    ]
