"""Logs and progress survive their way as JSON."""

import pytest

from turnstile.common.domain.identifiers import Grant
from turnstile.common.report_wire import (
    LogPiece,
    ProgressReport,
    decode_log,
    decode_progress,
    encode_log,
    encode_progress,
)
from turnstile.common.worker_protocol import Sender
from turnstile.common.worker_wire import InvalidWireMessage

SENDER = Sender(worker_id="w", session=2, secret="s")
GRANT = Grant(1_764_300_000_000, 7)


def test_pieces_of_logs_arrive_as_they_were_sent() -> None:
    pieces = [
        LogPiece(execution_id=5, grant=GRANT, attempt=1, start=0, text="one\n"),
        LogPiece(execution_id=6, grant=GRANT, attempt=2, start=4, text="z\u00fcrich\n"),
    ]
    assert decode_log(encode_log(SENDER, pieces)) == (SENDER, pieces)


def test_progress_arrives_as_it_was_sent() -> None:
    reports = [
        ProgressReport(execution_id=5, grant=GRANT, attempt=1, at=2.5, done=1.0),
        ProgressReport(execution_id=6, grant=GRANT, attempt=1, at=3.5, done=1.0, total=4.0, message="m"),
    ]
    assert decode_progress(encode_progress(SENDER, reports)) == (SENDER, reports)


@pytest.mark.parametrize(
    "body", [b"{}", b"\xff", b'{"worker_id":"w","session":1,"secret":"s","pieces":[{}]}']
)
def test_what_does_not_follow_the_protocol_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidWireMessage):
        decode_log(body)
