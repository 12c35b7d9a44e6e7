"""The warnings of a start that a worker keeps for its registration."""

import logging
from collections.abc import Iterator

import pytest

from turnstile.worker.start_notes import WarningRecorder


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("turnstile.tests.recorded")
    yield logger
    logger.handlers.clear()


def test_the_first_warnings_are_kept_with_their_fields_and_others_are_not(logger: logging.Logger) -> None:
    recorder = WarningRecorder(lines_max=2, chars_max=60)
    logger.addHandler(recorder)
    logger.setLevel(logging.INFO)
    logger.info("serving")
    logger.warning("action_differs", extra={"action_ref": "a.b", "fields": "pool,ttl"})
    logger.error("not_registered", extra={"reason": "x" * 100})
    logger.error("too_many")
    first, second = recorder.lines()
    assert first == "WARNING action_differs action_ref=a.b fields=pool,ttl"
    assert second.startswith("ERROR not_registered reason=xxx")
    assert len(second) == 60
    recorder.clear()
    assert recorder.lines() == []


def test_a_line_has_neither_passwords_nor_line_breaks(logger: logging.Logger) -> None:
    recorder = WarningRecorder()
    logger.addHandler(recorder)
    logger.warning("not_registered", extra={"reason": "amqp://user:secret@host/\nWARNING forged"})
    (line,) = recorder.lines()
    assert "secret" not in line
    assert "\n" not in line
