"""The messages between leader and worker survive their way as JSON."""

import json

import pytest

from turnstile.common import worker_wire
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Dismissed,
    Heard,
    Heartbeat,
    Held,
    Hello,
    LastProgress,
    LeaderBody,
    Leaving,
    Offer,
    Offers,
    Recall,
    Report,
    ReportBody,
    Sender,
    ToSession,
    Welcome,
)

GRANT = Grant(1_764_300_000_000, 7)
SENDER = Sender(worker_id="w", session=2, secret="s")
OFFER = Offer(
    execution_id=5, grant=GRANT, attempt=1, action_ref="a.b", parameters=b'{"x":1.50}', priority=2,
    expires_in_seconds=3.5, timeout_seconds=9.0, extra={"metadata": {"tag": "t"}},
)  # fmt: skip


def reported(body: ReportBody, number: int) -> Report:
    return Report(sender=SENDER, number=number, kept_from=1, epoch_seen=9, body=body)


def test_messages_of_the_leader_arrive_as_they_were_sent() -> None:
    bodies: list[LeaderBody] = [
        Welcome(),
        Welcome(stored=({"ref": "a.b", "max_concurrent": 2},), refused=("action 'c': is wrong",)),
        Offers(queue="a.b/k", at_once=None, offers=(OFFER,)),
        Offers(queue="a.b", at_once=4, offers=(OFFER, OFFER)),
        CancelAttempt(execution_id=5, grant=GRANT, reason="why", status=Status.TIMEOUT),
        CancelAttempt(execution_id=5, grant=GRANT, reason="why"),
        Recall(queue="a.b", barrier=GRANT),
        Heard(heartbeat=3, committed=8),
        Heard(heartbeat=3, committed=8, is_draining=True),
        Dismissed(),
    ]
    messages = [ToSession(epoch=9, number=n, body=body) for n, body in enumerate(bodies, 1)]
    assert worker_wire.decode_to_session(worker_wire.encode_to_session(messages)) == messages


def test_reports_arrive_as_they_were_sent() -> None:
    bodies: list[ReportBody] = [
        Held(epoch=9, grants=((5, GRANT), (6, GRANT))),
        AttemptEnded(execution_id=5, grant=GRANT, status=Status.COMPLETED, result=b"null"),
        AttemptEnded(
            execution_id=5, grant=GRANT, status=Status.FAILED, error=("E", "m"), is_retryable=True,
            delay_seconds=1.0, started_at=1.0, completed_at=2.0, log="line\n", log_start=7,
            progress=LastProgress(at=1.5, done=3.0, total=4.0, message="m"),
        ),
        AttemptStarted(execution_id=5, grant=GRANT, at=1.5),
        AttemptReturned(execution_id=5, grant=GRANT, had_started=True, reason="drain"),
        Leaving(),
    ]  # fmt: skip
    reports = [reported(body, number) for number, body in enumerate(bodies, 1)]
    assert worker_wire.decode_reports(worker_wire.encode_reports(reports)) == reports


def test_hello_and_heartbeat_arrive_as_they_were_sent() -> None:
    hello = Hello(
        sender=SENDER, name="n", pools=("p",), actions=("a.b",), concurrency=4, lease_seconds=30.0,
        epoch_seen=9, is_taking=False, definitions=({"ref": "a.b"},), not_ready="why",
        about={"host": "h", "pid": 7},
    )  # fmt: skip
    heartbeat = Heartbeat(sender=SENDER, number=3, epoch_seen=9, received=17, not_ready="why")
    assert worker_wire.decode_hello(worker_wire.encode_heartbeat(hello)) == hello
    assert worker_wire.decode_heartbeat(worker_wire.encode_heartbeat(heartbeat)) == heartbeat


def test_a_result_is_not_parsed() -> None:
    text = b'{"a": 1.50, "a": 1e400}'
    report = reported(AttemptEnded(execution_id=5, grant=GRANT, status=Status.COMPLETED, result=text), 1)
    assert text in worker_wire.encode_reports([report])
    (found,) = worker_wire.decode_reports(worker_wire.encode_reports([report]))
    assert isinstance(found.body, AttemptEnded)
    assert found.body.result == text


def test_unknown_fields_are_ignored() -> None:
    body = json.loads(
        worker_wire.encode_heartbeat(Heartbeat(sender=SENDER, number=1, epoch_seen=0, received=0))
    )
    assert worker_wire.decode_heartbeat(json.dumps({**body, "new": 1}).encode()).number == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "truncated"),
        (b"\xff", "JSON"),
        (b"[]", "object"),
        (b'{"worker_id":"w","session":1,"secret":"s","epoch_seen":0}', "kept_from"),
        (
            b'{"worker_id":"w","session":1,"secret":"s","epoch_seen":0,"kept_from":1,"reports":'
            b'[{"number":1,"body":{"type":"execution.started","execution_id":1,"grant":"x","at":1}}]}',
            "expected epoch.counter",
        ),
    ],
)
def test_what_does_not_follow_the_protocol_is_refused_by_name(body: bytes, named: str) -> None:
    with pytest.raises(worker_wire.InvalidWireMessage, match=named):
        worker_wire.decode_reports(body)


def test_the_secret_is_not_in_the_representation() -> None:
    assert "'s'" not in repr(SENDER)
