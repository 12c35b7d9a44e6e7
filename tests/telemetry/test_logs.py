"""A line of the log says what happened, and never a password."""

import json
import logging

import pytest

from common.telemetry import configure_logging


@pytest.fixture(autouse=True)
def own_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is configured here ends with the test."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_password_of_a_url_is_blanked_wherever_it_stands(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(level="INFO", form="json" if form == "json" else "console")
    logger = logging.getLogger("executor.any")
    try:
        raise OSError("no way to amqp://worker:s3cret%40@broker:5672/vhost")
    except OSError:
        logger.exception("link_lost", extra={"url": "postgresql://app:s3cret@h1:5432,h2:5432/db"})
    written = capsys.readouterr().err
    assert "s3cret" not in written
    assert "postgresql://app:***@h1:5432,h2:5432/db" in written
    assert "amqp://worker:***@broker:5672/vhost" in written


def test_a_json_line_is_one_object_with_its_event_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="INFO", form="json")
    logging.getLogger("worker.any").info("execution_ended", extra={"execution_id": 7, "status": "completed"})
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["execution_id"], line["status"]) == ("execution_ended", 7, "completed")
    assert (line["level"], line["logger"]) == ("info", "worker.any")
