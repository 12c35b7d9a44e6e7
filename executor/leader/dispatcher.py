"""Messages to sessions: offers of what was granted, cancels, recalls.

A cancel of an old attempt is confirmed, or returned because its session is gone, before the new attempt is
offered: both are in batches of their own, published one after the other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from turnstile.common.worker_protocol import Offer, Offers, Recall
from turnstile.executor.leader.ports import StoredRequest
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.runs import note_size
from turnstile.executor.queue_manager.state import Execution, Queue, State

_OFFERS_BYTES_MAX: Final = 1024 * 1024
"""Parameters in one message; a single offer may be larger."""


def queue_name(queue: Queue) -> str:
    """Return the name of a queue, as users see it: the action, and its key."""
    return f"{queue.action.ref}/{queue.key}" if queue.key else queue.action.ref


def send_offers(
    state: State,
    sessions: Sessions,
    executions: Iterable[Execution],
    requests: Mapping[int, StoredRequest],
    definition_of: Callable[[str], Mapping[str, Any]],
) -> None:
    """Offer executions to their workers, in order: of one queue to one worker together."""
    groups: dict[tuple[str, Queue], list[Offer]] = {}
    for execution in executions:
        if execution.worker is None or execution.grant is None:
            continue
        extra = _extra(state, execution, requests[execution.id], definition_of(execution.action.ref))
        offer = _offer(state, execution, requests[execution.id], extra)
        note_size(execution.action, bytes_of(offer))
        groups.setdefault((execution.worker.id, execution.queue), []).append(offer)
    for (worker_id, queue), offers in groups.items():
        for part in in_parts(offers):
            body = Offers(queue=queue_name(queue), at_once=queue.limit, offers=part)
            sessions.send(worker_id, body)


def in_parts(offers: Iterable[Offer]) -> Iterator[tuple[Offer, ...]]:
    """Divide offers, in order, so that no message is larger than what a broker takes (16 MiB)."""
    part: list[Offer] = []
    part_bytes = 0
    for offer in offers:
        size_bytes = bytes_of(offer)
        if part and part_bytes + size_bytes > _OFFERS_BYTES_MAX:
            yield tuple(part)
            part, part_bytes = [], 0
        part.append(offer)
        part_bytes += size_bytes
    yield tuple(part)


def bytes_of(offer: Offer) -> int:
    """Return the size of what the submitter gave; the rest of an offer is small."""
    metadata = None if offer.extra is None else offer.extra.get("metadata")
    return len(offer.parameters) + (0 if metadata is None else len(metadata))


def _offer(state: State, execution: Execution, request: StoredRequest, extra: Mapping[str, Any]) -> Offer:
    assert execution.grant is not None
    definition = execution.queue.action.definition
    has_ttl = execution.expires_at != float("inf")
    return Offer(
        execution_id=execution.id, grant=execution.grant, attempt=execution.attempt,
        action_ref=definition.ref, parameters=request.parameters, priority=execution.priority,
        expires_in_seconds=max(execution.expires_at - state.now, 0.0) if has_ttl else None,
        timeout_seconds=(
            definition.timeout_seconds if execution.timeout_seconds is None else execution.timeout_seconds
        ),
        extra=extra,
    )  # fmt: skip


def _extra(
    state: State, execution: Execution, request: StoredRequest, definition: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return what else an attempt needs, and only what says something. Metadata stay JSON text."""
    extra: dict[str, Any] = {"waited": round(max(state.now - execution.queued_at, 0.0), 6)}
    runner, entrypoint = definition.get("runner", "python"), definition.get("entrypoint")
    if entrypoint is not None or runner != "python":
        extra["runner"], extra["entrypoint"] = runner, entrypoint
    if execution.queue.key:
        extra["concurrency_key"] = execution.queue.key
    retries_left = execution.action.definition.retry.max_attempts - execution.failures - 1
    if retries_left > 0:
        extra["retries_left"] = retries_left
    for name in ("metadata", "traceparent", "idempotency_key"):
        if (value := getattr(request, name)) is not None:
            extra[name] = value
    return extra


def send_changes(sessions: Sessions, out: Decisions) -> None:
    """Tell workers how many of their queues may run at once, and what they must return."""
    for queue, worker_id in out.limited:
        sessions.send(worker_id, Offers(queue=queue_name(queue), at_once=queue.limit, offers=()))
    for queue, worker_id, barrier in out.recalled:
        sessions.send(worker_id, Recall(queue=queue_name(queue), barrier=barrier))
