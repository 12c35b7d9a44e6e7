"""Events for listeners, on a connection of their own: the queue of a listener that hangs stops all of it.

In: events, after the commit of what they tell. Out: each was routed to every queue that is bound to it. What
one queue refuses is repeated for a short time, and what one never confirms is dropped for it alone; both are
counted and logged. Only a quorum queue without a majority delays events for all: RabbitMQ stops a connection
at its second message to such a queue, so they stay in the outbox.

`execution.completed` costs nearly nothing while no queue is bound: of the events of one call with the same
routing keys only the first is sent, and the others if the broker did not return it. All of them ended before
it was sent, so no listener misses an event of an execution that ended after the listener was bound.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from pydantic_core import to_json

from turnstile.common.broker.errors import NotConfirmed
from turnstile.common.broker.message import Outgoing, Publication, SharedHeaders
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTIONS, completed_key
from turnstile.common.envelopes import envelope
from turnstile.common.messages import SCHEMA_VERSION
from turnstile.executor.best_effort import BestEffortPublisher, Dropped, RecentAddresses
from turnstile.executor.leader.ports import StatusChanged
from turnstile.executor.leader.status_events import StatusEvents

_UNCONFIRMED_MAX: Final = 200
_CONFIRM_SECONDS: Final = 1.0
_SILENT_CONFIRM_SECONDS: Final = 0.05
_SILENCE_REMEMBERED_SECONDS: Final = 60.0
_TRIES_MAX: Final = 2
"""A connection that the broker stops behind a full queue is renewed: a new one takes some hundred more."""
_COPIES_TRIES_MAX: Final = 2
_REFUSAL_REMEMBERED_SECONDS: Final = 5.0
_UNHEARD_MAX: Final = 10_000

_Keys = tuple[str, str]
"""Action and status: events with the same ones have the same routing keys."""


class Events:
    """Publishes the events of one leader; calls may overlap."""

    def __init__(
        self,
        publisher: Publisher,
        best_effort: BestEffortPublisher,
        *,
        on_dropped: Dropped,
        result_bytes_max: int,
    ) -> None:
        """Use a `publisher` of its own; a larger result than `result_bytes_max` is null."""
        self._publisher = publisher
        self._best_effort = best_effort
        self._on_dropped = on_dropped
        self._result_bytes_max = result_bytes_max
        self._status = StatusEvents(publisher)
        self._refused = RecentAddresses(_REFUSAL_REMEMBERED_SECONDS)
        self._unheard: dict[_Keys, None] = {}
        """Keys of which the last event was returned."""
        self._silent_until = 0.0

    def announce(self, changes: Iterable[StatusChanged]) -> None:
        """Publish status changes within milliseconds if a queue is bound to them; they may be lost."""
        self._status.add(changes)

    async def publish(self, ends: Sequence[Mapping[str, Any]]) -> None:
        """Return once each end was routed. Raises BrokerUnavailable: any of them may have arrived."""
        first, others = self._divide(ends)
        await self._publish_ends(first)
        await self._publish_ends([each for each in others if _keys(each) not in self._unheard])

    def _divide(
        self, ends: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """Return what is sent in any case, and what only if the first one of its keys is heard."""
        first: list[Mapping[str, Any]] = []
        others: list[Mapping[str, Any]] = []
        asked: set[_Keys] = set()
        for each in ends:
            keys = _keys(each)
            (others if keys in asked else first).append(each)
            if keys in self._unheard:
                asked.add(keys)
        return first, others

    async def _publish_ends(self, ends: Sequence[Mapping[str, Any]]) -> None:
        start = 0
        while start < len(ends):
            part = ends[start : start + _UNCONFIRMED_MAX]
            messages = [completed_event(each, result_bytes_max=self._result_bytes_max) for each in part]
            outcomes = await self._send(messages)
            for each, message, outcome in zip(part, messages, outcomes, strict=True):
                self._note(_keys(each), message, outcome)
            start += len(part)

    async def _send(self, messages: Sequence[Outgoing]) -> Sequence[Publication | None]:
        """Publish some at once; repeat them where the connection had to be renewed."""
        for tries_left in reversed(range(_TRIES_MAX)):
            is_silent = asyncio.get_running_loop().time() < self._silent_until
            seconds = _SILENT_CONFIRM_SECONDS if is_silent else _CONFIRM_SECONDS
            try:
                outcomes = await self._publisher.publish_each(messages, seconds=seconds)
            except NotConfirmed:
                if not tries_left:
                    raise
                self._be_silent()
            else:
                if None in outcomes:
                    self._be_silent()
                return outcomes
        raise AssertionError("unreachable: the last try returns or raises")

    def _be_silent(self) -> None:
        self._silent_until = asyncio.get_running_loop().time() + _SILENCE_REMEMBERED_SECONDS

    def _note(self, keys: _Keys, message: Outgoing, outcome: Publication | None) -> None:
        if outcome is Publication.RETURNED:
            self._unheard[keys] = None
            if len(self._unheard) > _UNHEARD_MAX:
                del self._unheard[next(iter(self._unheard))]
            return
        self._unheard.pop(keys, None)
        if outcome is None:
            self._on_dropped(message, "a queue that is bound to this exchange does not confirm")
        elif outcome is Publication.REFUSED:
            is_known = message in self._refused
            self._refused.add(message)
            if is_known:
                self._on_dropped(message, "a queue that is bound to this exchange refuses it")
            else:
                self._best_effort.post([message], tries_max=_COPIES_TRIES_MAX)


def _keys(event: Mapping[str, Any]) -> _Keys:
    return event["action_ref"], event["status"]


def completed_event(event: Mapping[str, Any], *, result_bytes_max: int) -> Outgoing:
    """Return `execution.completed` for listeners: as today, and with a second routing key.

    The second key, with the action and the status, is in the header BCC of this one message: the broker
    delivers it once to a queue that is bound to both, and shows the header to no consumer.
    """
    action_ref, status, execution_id = event["action_ref"], event["status"], event["execution_id"]
    result, error = event["result"], event["error"]
    if result is not None:
        result = result.encode()
    body = (
        b'{"execution_id":%d,"action_id":%b,"action_ref":%b,"status":"%b","result":%b,"error":%b,'
        b'"attempt":%d,"completed_at":%b}'
    ) % (
        execution_id,
        to_json(event.get("action_id")),
        to_json(action_ref),
        status.encode(),
        b"null" if result is None or len(result) > result_bytes_max else result,
        b"null" if error is None else to_json(error),
        event["attempt"],
        to_json(datetime.fromtimestamp(event["completed_at"], UTC)),
    )
    message = envelope(
        body,
        message_type=EXECUTION_COMPLETED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_COMPLETED,
        app_id="executor",
        correlation_id=str(execution_id),
    )
    traceparent = event.get("traceparent")
    headers = _headers_of(action_ref, status)
    message.headers = headers if traceparent is None else {**headers, "traceparent": traceparent}
    return message


@lru_cache(maxsize=1024)
def _headers_of(action_ref: str, status: str) -> SharedHeaders:
    return SharedHeaders(schema_version=SCHEMA_VERSION, BCC=(completed_key(action_ref, status),))
