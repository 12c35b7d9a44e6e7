"""A flood of messages that cannot be used is a few lines in the log, with a count."""

import logging

import pytest

from turnstile.common.domain.errors import Code
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor import completion_listener
from turnstile.executor.completion_listener import CompletionBatch


class Unkept:
    """A delivery whose body was not kept: too large."""

    kept = False


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
