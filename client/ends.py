"""Waits for ends: told by `execution.completed`, and found in the record where an event was lost.

In: execution ids. Out: one `Completion` each. The events come to a queue of this client alone, bound from
the first wait on; as events may be lost, and may be over before somebody waits, each wait also looks in the
record over HTTP, at growing intervals (P4, seen from outside). Next: `api` reads the record.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from pydantic import JsonValue, ValidationError

from turnstile.client.api import Api
from turnstile.client.errors import Unavailable
from turnstile.client.shapes import Error, Execution
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTIONS
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.messages import ExecutionCompleted

logger = logging.getLogger(__name__)

_BATCH_MAX: Final = 1000
_LOOK_PAUSE_FIRST_SECONDS: Final = 0.25
_LOOK_PAUSE_MAX_SECONDS: Final = 5.0
_LOOK_PAUSE_PER_WAIT_SECONDS: Final = 0.01
"""Keeps the looks of a client with many waits below a hundred a second."""
_RESULT_TIMEOUT_SECONDS: Final = 30.0
_QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
_RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
_RECENT_EVENTS_MAX: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How an execution ended."""

    execution_id: int
    action_ref: str
    status: Status
    result: JsonValue
    """What the action returned; None unless completed."""
    error: Error | None
    attempt: int
    completed_at: datetime


_Told = asyncio.Future[Completion | None]
"""Where one wait is told by an event."""


class Ends:
    """Ends that somebody here waits for. `run` keeps it going."""

    def __init__(self, consumer: ConsumerConnection, api: Api, *, queue: str) -> None:
        self._consumer = consumer
        self._api = api
        self._queue = queue
        self._wanted = asyncio.Event()
        self._bound = False
        self._waits: defaultdict[int, set[_Told]] = defaultdict(set)
        self._recent = _RecentEvents()

    async def run(self) -> NoReturn:
        """Take events until cancelled, from the first wait on."""
        await self._wanted.wait()
        subscription = self._consumer.subscribe(self._queue, prefetch=_BATCH_MAX, declare=self._declare)
        while True:
            deliveries = await subscription.next_batch(_BATCH_MAX)
            for delivery in deliveries:
                self._take(delivery)
            subscription.ack(deliveries)

    def watch(self) -> bool:
        """Take events from now on; tell whether the queue has been bound already."""
        self._wanted.set()
        return self._bound

    async def wait(self, execution_id: int, *, look_at_once: bool = True) -> Completion:
        """Return how the execution ended; raises Rejected where the record knows no such execution.

        `look_at_once` may be left out where events have been watched since before the submit.
        """
        self.watch()
        with self._told(execution_id) as told:
            pause_seconds = _LOOK_PAUSE_FIRST_SECONDS
            if not look_at_once:
                await asyncio.wait({told}, timeout=4 * pause_seconds)
            while not told.done():
                found = await self._look(execution_id, told)
                if found is not None:
                    return found
                pause_max_seconds = max(
                    _LOOK_PAUSE_MAX_SECONDS, len(self._waits) * _LOOK_PAUSE_PER_WAIT_SECONDS
                )
                await asyncio.wait({told}, timeout=pause_seconds)
                pause_seconds = min(2 * pause_seconds, pause_max_seconds)
            completion = told.result()
            assert completion is not None
            return await self._whole(completion)

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient and bounded: nobody waits for the disk because we listen, and what is lost is looked up.
        queue = await channel.declare_queue(
            self._queue, exclusive=True, arguments={"x-max-length-bytes": _QUEUE_BYTES_MAX}
        )
        await queue.bind(EXECUTIONS, EXECUTION_COMPLETED)
        self._bound = True

    @contextmanager
    def _told(self, execution_id: int) -> Iterator[_Told]:
        told: _Told = asyncio.get_running_loop().create_future()
        waits = self._waits[execution_id]
        waits.add(told)
        self._tell(told, self._recent.get(execution_id))
        try:
            yield told
        finally:
            told.cancel()
            waits.discard(told)
            if not waits:
                self._waits.pop(execution_id, None)

    def _take(self, delivery: Delivery) -> None:
        # All events of the installation pass here: most are none of ours, and are not even read.
        if delivery.correlation_id is None or not delivery.correlation_id.isdecimal():
            return
        execution_id = int(delivery.correlation_id)
        self._recent.add(execution_id, delivery.body)
        for told in self._waits.get(execution_id, ()):
            self._tell(told, delivery.body)

    @staticmethod
    def _tell(told: _Told, body: bytes | None) -> None:
        if body is None or told.done():
            return
        try:
            told.set_result(_of_event(body))
        except ValidationError as error:
            # Whoever sent that, the record knows how it ended.
            logger.warning("event_not_understood", extra={"reason": str(error)})

    async def _look(self, execution_id: int, told: _Told) -> Completion | None:
        """Return the end from the record, or None where it has none, cannot be reached, or the event came."""
        looking = asyncio.create_task(self._recorded(execution_id), name=f"look-{execution_id}")
        try:
            await asyncio.wait({looking, told}, return_when=asyncio.FIRST_COMPLETED)
            return looking.result() if looking.done() else None
        except Unavailable:
            return None
        finally:
            looking.cancel()

    async def _recorded(self, execution_id: int) -> Completion | None:
        return _of_record(await self._api.execution(execution_id))

    async def _whole(self, completion: Completion) -> Completion:
        """Fetch the result where the event has none: there was none, or it was too large for an event."""
        if completion.status is not Status.COMPLETED or completion.result is not None:
            return completion
        pause_seconds = _LOOK_PAUSE_FIRST_SECONDS
        give_up_at = asyncio.get_running_loop().time() + _RESULT_TIMEOUT_SECONDS
        while True:
            try:
                return await self._recorded(completion.execution_id) or completion
            except Unavailable as error:
                if asyncio.get_running_loop().time() > give_up_at:
                    ended = f"execution {completion.execution_id} completed"
                    raise Unavailable(f"{ended}, but its result cannot be read: {error}") from error
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LOOK_PAUSE_MAX_SECONDS)


class _RecentEvents:
    """The latest events, bounded: an execution can be over before its submitter has the id."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[int, bytes] = OrderedDict()
        self._size_bytes = 0

    def get(self, execution_id: int) -> bytes | None:
        return self._bodies.get(execution_id)

    def add(self, execution_id: int, body: bytes) -> None:
        self._size_bytes += len(body) - len(self._bodies.pop(execution_id, b""))
        self._bodies[execution_id] = body
        while self._size_bytes > _RECENT_BYTES_MAX or len(self._bodies) > _RECENT_EVENTS_MAX:
            _, dropped = self._bodies.popitem(last=False)
            self._size_bytes -= len(dropped)


def _of_event(body: bytes) -> Completion:
    event = ExecutionCompleted.model_validate_json(body)
    return Completion(
        execution_id=event.execution_id,
        action_ref=event.action_ref,
        status=event.status,
        result=event.result,
        error=event.error,
        attempt=event.attempt,
        completed_at=event.completed_at,
    )


def _of_record(execution: Execution) -> Completion | None:
    if not is_terminal(execution.status) or execution.completed_at is None:
        return None
    return Completion(
        execution_id=execution.id,
        action_ref=execution.action_ref,
        status=execution.status,
        result=execution.result,
        error=execution.error,
        attempt=execution.attempt,
        completed_at=execution.completed_at,
    )
