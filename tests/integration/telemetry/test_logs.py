"""A log record is one line, without passwords and without control characters from outside."""

import json
import logging

import pytest

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.telemetry.logs import configure_logging
from turnstile.worker.logs import log_in_worker


def written_by(capsys: pytest.CaptureFixture[str]) -> str:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return capsys.readouterr().err


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_password_of_a_url_is_always_blanked(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="INFO", form="json" if form == "json" else "console")
    logger = logging.getLogger("executor.any")
    try:
        raise OSError("no way to amqp://worker:s3cret%40@broker:5672/vhost")
    except OSError:
        logger.exception("link_lost", extra={"url": "postgresql://app:s3cret@h1:5432,h2:5432/db"})
    written = written_by(capsys)
    assert "s3cret" not in written
    assert "postgresql://app:***@h1:5432,h2:5432/db" in written
    assert "amqp://worker:***@broker:5672/vhost" in written


def test_a_json_line_is_one_object_with_its_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="INFO", form="json")
    logging.getLogger("worker.any").info("execution_ended", extra={"execution_id": 7, "status": "completed"})
    line = json.loads(written_by(capsys))
    assert (line["event"], line["execution_id"], line["status"]) == ("execution_ended", 7, "completed")
    assert (line["level"], line["logger"]) == ("info", "worker.any")


HOSTILE = [
    "m\n12:00:00.000 INFO    executor request_accepted",
    "m\r12:00:00.000 INFO    executor request_accepted",
    "\x1b[2J\x1b[1;31mred\x1b]0;title\x07",
    "\x9b2J \x7f \x00 \x08\x08",
    "m\u2028next\u2029next\x85next\x0bnext\x0cnext",
    "\u202etxt.exe\u2066 \u200f \u061c",
    "\ufeff\u200b\U000e0041\ud800",
]


def said_by(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    configure_logging(level="INFO", form="json" if form == "json" else "console")
    logging.getLogger("executor.any").info("request_refused", extra={"message_id": text, "code": "not_found"})
    return written_by(capsys)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["console", "json"])
def test_a_record_and_a_log_line_of_an_action_are_one_line_of_printable_characters(
    form: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written = said_by(form, text, capsys)
    assert written.endswith("\n")
    assert written[:-1].isprintable(), ascii(written)
    assert "code" in written.partition("message_id")[2]
    if form == "json":
        assert json.loads(written)["message_id"] == text
    log_in_worker(logging.INFO, text, execution_id=ExecutionId(1), attempt=Attempt(1), action_ref="a")
    assert written_by(capsys)[:-1].isprintable()


def test_a_value_on_the_console_is_unchanged_and_cannot_look_like_several_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = said_by("console", 'm code=accepted execution_id=7 "', capsys)
    assert 'message_id="m code=accepted execution_id=7 \\"" code=not_found' in written
    assert "message_id=señor-مرحبا-👩\u200d💻-数" in said_by("console", "señor-مرحبا-👩\u200d💻-数", capsys)


def test_traceback_lines_cannot_look_like_log_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging(level="INFO", form="console")
    try:
        raise ValueError("\n12:00:00.000 INFO    executor all_is_well\r\x1b[1A")
    except ValueError:
        logging.getLogger("executor.any").exception("any_broken")
    first, *rest = written_by(capsys).splitlines()
    assert "any_broken" in first
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
    assert rest[0] == "  | Traceback (most recent call last):"
