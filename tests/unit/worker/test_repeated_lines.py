"""What happens to many attempts in the same way is a few lines in the log, with a count."""

import logging

import pytest

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.telemetry.logs import Episodes
from turnstile.worker import instrumentation
from turnstile.worker.protocol import Offer, Verdict


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 3), (logging.DEBUG, 3_003)])
def test_a_thousand_stale_offers_are_one_line_and_each_one_only_at_level_debug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int, lines: int
) -> None:
    logger = instrumentation.logger
    claims = Episodes(logger, "claim_not_applied", level=logging.INFO)
    monkeypatch.setattr(instrumentation, "_NOT_APPLIED", {"claim": claims})
    monkeypatch.setattr(instrumentation, "_DROPPED", Episodes(logger, "attempt_dropped", level=logging.INFO))
    caplog.set_level(level, logger.name)
    for number in range(1_000):
        offer = Offer(execution_id=ExecutionId(number), attempt=Attempt(1))
        instrumentation.not_applied("claim", offer, Verdict.STALE)
        instrumentation.not_applied("claim", offer, Verdict.UNKNOWN)
        instrumentation.dropped(offer)
    assert len(caplog.records) == lines
    caplog.clear()
    claims.all_work()
    assert [(each.getMessage(), each.__dict__["count"]) for each in caplog.records] == [
        ("claim_not_applied_over", 999),
        ("claim_not_applied_over", 999),
    ]
