from datetime import UTC, datetime

import pytest

from turnstile.client.errors import Rejected
from turnstile.client.requests import Request, cancel_request_message, request_message
from turnstile.common.broker.message import Outgoing
from turnstile.common.requests import read_requested_body

_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _message(request: Request, parameters_bytes_max: int = 1024) -> Outgoing:
    return request_message(request, reply_to="answers", parameters_bytes_max=parameters_bytes_max)


def test_a_request_message_carries_only_the_given_fields() -> None:
    message = _message(
        Request(
            action_ref="reports.render",
            parameters={"pages": (1, 2)},
            idempotency_key="k",
            run_at=datetime(2030, 1, 1, tzinfo=UTC),
            timeout="5m",
            priority=2,
            traceparent=_TRACEPARENT,
        )
    )
    read = read_requested_body(message.body)
    assert read.parameters == {"pages": [1, 2]}
    assert (read.idempotency_key, read.timeout, read.ttl, read.priority) == ("k", 300.0, None, 2)
    assert read.run_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert b"traceparent" not in message.body
    assert message.headers == {"schema_version": 1, "traceparent": _TRACEPARENT}
    assert (message.app_id, message.reply_to, message.persistent) == ("client", "answers", True)
    assert message.correlation_id == message.message_id


@pytest.mark.parametrize(
    ("request_", "code", "names"),
    [
        (Request(action_ref="no spaces"), "invalid_message", "action_ref"),
        (Request(action_ref="a", parameters={"x": float("nan")}), "invalid_message", "body"),
        (Request(action_ref="a", parameters={"x": object()}), "invalid_parameters", "parameters"),
        (Request(action_ref="a", parameters={"x": "\0"}), "invalid_parameters", "cannot be stored"),
        (Request(action_ref="a", parameters={"x": "y" * 1024}), "too_large", "parameters"),
        (Request(action_ref="a", run_at=datetime(2030, 1, 1)), "invalid_message", "run_at"),  # noqa: DTZ001
        (Request(action_ref="a", timeout="soon"), "invalid_message", "timeout"),
        (Request(action_ref="a", delay="later"), "invalid_message", "delay"),
        (
            Request(action_ref="a", delay="5m", run_at=datetime(2030, 1, 1, tzinfo=UTC)),
            "invalid_message",
            "run_at, delay: give one of them",
        ),
        (Request(action_ref="a", priority=0), "invalid_message", r"priority: .* or leave it out"),
        (Request(action_ref="a", traceparent="00-x"), "invalid_message", "traceparent"),
    ],
)
def test_an_invalid_request_is_rejected_before_it_is_sent(request_: Request, code: str, names: str) -> None:
    with pytest.raises(Rejected, match=names) as refused:
        _message(request_)
    assert refused.value.code == code


def test_a_delay_is_sent_as_it_is_also_with_an_idempotency_key() -> None:
    read = read_requested_body(_message(Request(action_ref="a", delay="5m", idempotency_key="k")).body)
    assert (read.delay, read.run_at) == (300.0, None)


def test_a_request_without_a_priority_can_be_read_by_an_earlier_executor() -> None:
    assert (
        _message(Request(action_ref="a", priority=None)).body
        == b'{"action_ref":"a","parameters":{},"metadata":{}}'
    )


def test_a_cancel_names_exactly_one_execution() -> None:
    with pytest.raises(Rejected, match="exactly one"):
        cancel_request_message(None, None, None)
    with pytest.raises(Rejected, match="exactly one"):
        cancel_request_message(1, "k", None)
    assert cancel_request_message(7, None, "late").body == b'{"execution_id":7,"reason":"late"}'
    with pytest.raises(Rejected, match="execution_id"):
        cancel_request_message(0, None, None)
