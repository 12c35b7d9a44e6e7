"""On the wire: strict with strangers, lenient between our own services, every message in its envelope."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from turnstile.common.broker.delivery import Outgoing
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import cancel_message, completed_message, scheduled_message
from turnstile.common.messages import (
    CancelRequested,
    ExecutionCancel,
    ExecutionCompleted,
    ExecutionRequested,
    ExecutionScheduled,
    StatusChanged,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("model", [ExecutionRequested, CancelRequested])
def test_an_unknown_field_from_outside_is_refused(model: type[BaseModel]) -> None:
    needed = {"action_ref": "a"} if "action_ref" in model.model_fields else {}
    with pytest.raises(ValidationError, match="paramters"):
        model.model_validate({"paramters": {}} | needed)


def test_an_unknown_field_of_a_newer_version_of_ours_is_passed_over() -> None:
    body = {"execution_id": 1, "attempt": 2, "action_ref": "a", "priority": 9}
    assert ExecutionScheduled.model_validate(body) == ExecutionScheduled(
        execution_id=1, attempt=2, action_ref="a"
    )


def test_the_least_request_is_a_reference() -> None:
    request = ExecutionRequested.model_validate({"action_ref": "reports.render"})
    assert (request.parameters, request.metadata, request.idempotency_key) == ({}, {}, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"idempotency_key": ""}, {"concurrency_key": "x" * 513}, {"run_at": "2030-01-01T00:00:00"},
        {"ttl": "soon"}, {"timeout": -1}, {"callback_url": "ftp://there"}, {"parameters": []},
        {"metadata": None}, {"action_ref": "no spaces"},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_request_may_not_say(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ExecutionRequested.model_validate({"action_ref": "a", **fields})


def assert_enveloped(
    message: Outgoing, message_type: str, routing_key: str, *, exchange: str = "executions"
) -> None:
    assert (message.type, message.exchange, message.routing_key) == (message_type, exchange, routing_key)
    assert UUID(message.message_id).version == 4
    assert message.headers is not None
    assert message.headers["schema_version"] == 1
    assert message.persistent


def test_an_offer_goes_to_the_pool_of_its_action_with_its_trace() -> None:
    offer = ExecutionScheduled(execution_id=1, attempt=2, action_ref="a")
    message = scheduled_message(offer, pool="gpu", traceparent=TRACE)
    assert_enveloped(message, "execution.scheduled", "execution.scheduled.gpu")
    assert message.headers is not None
    assert message.headers["traceparent"] == TRACE
    assert message.app_id == "executor"
    assert ExecutionScheduled.model_validate_json(message.body) == offer


def test_a_request_to_stop_goes_to_the_worker_that_runs_it() -> None:
    message = cancel_message(ExecutionCancel(execution_id=1, attempt=2), worker_id="w-1")
    assert_enveloped(message, "execution.cancel", "worker.w-1", exchange="")
    assert message.headers is not None
    # Where a node is down, the worker's own queue has another name.
    assert message.headers["CC"] == tuple(f"worker.w-1.{number}" for number in range(2, 10))


@pytest.mark.parametrize("app_id", ["worker", "executor"])
def test_an_end_is_told_with_all_that_it_is(app_id: str) -> None:
    end = ExecutionCompleted(
        execution_id=1, action_id=2, action_ref="a", status=Status.COMPLETED, result={"words": 7},
        attempt=3, completed_at=NOW,
    )  # fmt: skip
    message = completed_message(end, app_id="worker" if app_id == "worker" else "executor")
    assert_enveloped(message, "execution.completed", "execution.completed")
    assert (message.app_id, message.correlation_id) == (app_id, "1")
    assert ExecutionCompleted.model_validate_json(message.body) == end


def test_a_change_of_status_has_every_field_of_the_wire() -> None:
    assert set(StatusChanged.model_fields) == {
        "execution_id", "action_ref", "status", "previous_status", "attempt", "changed_at",
    }  # fmt: skip
