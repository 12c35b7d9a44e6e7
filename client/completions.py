"""Waits for executions to finish: by `execution.completed`, or by the API where an event was lost.

In: execution ids. Out: one `Completion` each. The events arrive in a queue of this client, bound from a wait
on until nothing has waited for a minute; as events may be lost, or arrive before the wait begins, each
wait also reads the execution over HTTP, at growing intervals (P4 as seen from outside). Without events, the
API answers a reading when the execution has ended.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn

from aio_pika.abc import AbstractChannel
from pydantic import JsonValue, ValidationError

from turnstile.client.api import Api
from turnstile.client.errors import Unavailable
from turnstile.client.schemas import Execution
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTIONS
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.invalid_values import explained
from turnstile.common.messages import Error, ExecutionCompleted

logger = logging.getLogger(__name__)

_BATCH_MAX: Final = 1000
_READ_PAUSE_FIRST_SECONDS: Final = 0.25
_READ_PAUSE_MAX_SECONDS: Final = 5.0
_READ_PAUSE_ALONE_FIRST_SECONDS: Final = 0.05
_READ_PAUSE_ALONE_MAX_SECONDS: Final = 1.0
"""Without events, as over HTTP alone."""
_READ_PAUSE_PER_WAIT_SECONDS: Final = 0.01
"""Limits a client with many waits to a hundred reads per second."""
_RESULT_TIMEOUT_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 60.0
"""After the last wait the queue is unbound: the events of the whole installation arrive in it."""
_QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
_RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
_RECENT_EVENTS_MAX: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The terminal state of an execution."""

    execution_id: int
    action_ref: str
    status: Status
    result: JsonValue
    """The return value of the action; None unless completed."""
    error: Error | None
    attempt: int
    completed_at: datetime


Seen = dict[int, Status]
"""The last status that was read of each execution."""
_Waiter = asyncio.Future[Completion | None]
"""The event that one wait receives."""


class Completions:
    """The waits of one client. `run` receives the events."""

    def __init__(self, consumer: ConsumerConnection | None, api: Api, *, queue: str) -> None:
        """Without a consumer there are no events: each wait reads over HTTP alone."""
        self._consumer = consumer
        self._api = api
        self._queue = queue
        self._wanted = asyncio.Event()
        self._bound = False
        self._declared = False
        # A renewal of the subscription declares the queue beside the task that binds it.
        self._binding = asyncio.Lock()
        self._used_at = 0.0
        """In the time of the event loop."""
        self._waits: defaultdict[int, set[_Waiter]] = defaultdict(set)
        self._recent = _RecentEvents()
        self._pauses_seconds = (
            (_READ_PAUSE_ALONE_FIRST_SECONDS, _READ_PAUSE_ALONE_MAX_SECONDS)
            if consumer is None
            else (_READ_PAUSE_FIRST_SECONDS, _READ_PAUSE_MAX_SECONDS)
        )

    async def run(self) -> NoReturn:
        """Receive events until cancelled, from the first wait on."""
        assert self._consumer is not None
        await self._wanted.wait()
        subscription = self._consumer.subscribe(self._queue, prefetch=_BATCH_MAX, declare=self._declare)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._bind_while_used(), name="bind-completions")
            while True:
                deliveries = await subscription.next_batch(_BATCH_MAX)
                for delivery in deliveries:
                    self._take(delivery)
                subscription.ack(deliveries)

    def watch(self) -> bool:
        """Receive events from now on; return whether the queue is bound already."""
        self._wanted.set()
        self._used_at = asyncio.get_running_loop().time()
        return self._bound

    async def wait(self, execution_id: int, seen: Seen, *, read_at_once: bool = True) -> Completion:
        """Return the terminal state; raises Rejected if there is no such execution.

        Notes each status in `seen`. `read_at_once` may be False if events have been watched since before the
        submit.
        """
        self.watch()
        loop = asyncio.get_running_loop()
        with self._waiter(execution_id) as waiter:
            pause_seconds, longest_seconds = self._pauses_seconds
            if not read_at_once:
                await asyncio.wait({waiter}, timeout=4 * pause_seconds)
            while not waiter.done():
                began_at = loop.time()
                found = await self._read(execution_id, seen, waiter)
                if found is not None:
                    return found
                pause_max_seconds = max(longest_seconds, len(self._waits) * _READ_PAUSE_PER_WAIT_SECONDS)
                await asyncio.wait({waiter}, timeout=max(began_at + pause_seconds - loop.time(), 0.0))
                pause_seconds = min(2 * pause_seconds, pause_max_seconds)
            completion = waiter.result()
            assert completion is not None
            seen[execution_id] = completion.status
            return await self._with_result(completion)

    async def _declare(self, channel: AbstractChannel) -> None:
        # Transient and bounded, so that no publisher waits for the disk; lost events are looked up.
        await channel.declare_queue(
            self._queue, exclusive=True, arguments={"x-max-length-bytes": _QUEUE_BYTES_MAX}
        )
        self._declared, self._bound = True, False
        if self._wanted.is_set():
            await self._match_binding(channel)

    async def _bind_while_used(self) -> NoReturn:
        assert self._consumer is not None
        while True:
            await self._wanted.wait()
            # Unless the declaration did, or a reconnection does.
            if self._declared and not self._bound:
                with suppress(BrokerUnavailable):
                    await self._consumer.declare(self._match_binding)
            await self._until_idle()
            self._wanted.clear()
            self._bound = False
            if self._declared:
                with suppress(BrokerUnavailable):
                    await self._consumer.declare(self._match_binding)

    async def _match_binding(self, channel: AbstractChannel) -> None:
        """Bind the queue if events are wanted, else unbind it."""
        async with self._binding:
            queue = await channel.get_queue(self._queue, ensure=False)
            if self._wanted.is_set():
                await queue.bind(EXECUTIONS, EXECUTION_COMPLETED)
                self._bound = True
            else:
                await queue.unbind(EXECUTIONS, EXECUTION_COMPLETED)

    async def _until_idle(self) -> None:
        while True:
            left_seconds = self._used_at + _IDLE_SECONDS - asyncio.get_running_loop().time()
            if not self._waits and left_seconds <= 0:
                return
            await asyncio.sleep(max(left_seconds, _IDLE_SECONDS / 4))

    @contextmanager
    def _waiter(self, execution_id: int) -> Iterator[_Waiter]:
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        waits = self._waits[execution_id]
        waits.add(waiter)
        self._resolve(waiter, self._recent.get(execution_id))
        try:
            yield waiter
        finally:
            waiter.cancel()
            waits.discard(waiter)
            self._used_at = asyncio.get_running_loop().time()
            if not waits:
                self._waits.pop(execution_id, None)

    def _take(self, delivery: Delivery) -> None:
        # All events of the installation arrive here; most are not ours, and are not parsed.
        if delivery.correlation_id is None or not delivery.correlation_id.isdecimal():
            return
        execution_id = int(delivery.correlation_id)
        self._recent.add(execution_id, delivery.body)
        for waiter in self._waits.get(execution_id, ()):
            self._resolve(waiter, delivery.body)

    @staticmethod
    def _resolve(waiter: _Waiter, body: bytes | None) -> None:
        if body is None or waiter.done():
            return
        try:
            waiter.set_result(_of_event(body))
        except ValidationError as error:
            # The API still has the terminal state.
            logger.warning("event_not_understood", extra={"reason": explained(error, whole="body")})

    async def _read(self, execution_id: int, seen: Seen, waiter: _Waiter) -> Completion | None:
        """Return the stored terminal state; None if there is none, the API is down, or the event came."""
        # The first reading is answered at once: it says whether there is such an execution, and its status.
        may_wait = self._consumer is None and execution_id in seen
        reading = asyncio.create_task(
            self._api.execution(execution_id, may_wait=may_wait), name=f"read-{execution_id}"
        )
        try:
            either: set[asyncio.Task[Execution] | _Waiter] = {reading, waiter}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return None
            execution = reading.result()
            seen[execution_id] = execution.status
            return _of_execution(execution)
        except Unavailable:
            return None
        finally:
            reading.cancel()

    async def _with_result(self, completion: Completion) -> Completion:
        """Fetch the result if the event has none: it may have been too large for an event."""
        if completion.status is not Status.COMPLETED or completion.result is not None:
            return completion
        pause_seconds = _READ_PAUSE_FIRST_SECONDS
        give_up_at = asyncio.get_running_loop().time() + _RESULT_TIMEOUT_SECONDS
        while True:
            try:
                return _of_execution(await self._api.execution(completion.execution_id)) or completion
            except Unavailable as error:
                if asyncio.get_running_loop().time() > give_up_at:
                    ended = f"execution {completion.execution_id} completed"
                    raise Unavailable(f"{ended}, but its result cannot be read: {error}") from error
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _READ_PAUSE_MAX_SECONDS)


class _RecentEvents:
    """The latest events, bounded: an execution may finish before its submitter knows the id."""

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
    return _completion(event.execution_id, event, event.completed_at)


def _of_execution(execution: Execution) -> Completion | None:
    if not is_terminal(execution.status) or execution.completed_at is None:
        return None
    return _completion(execution.id, execution, execution.completed_at)


def _completion(
    execution_id: int, source: ExecutionCompleted | Execution, completed_at: datetime
) -> Completion:
    return Completion(
        execution_id=execution_id,
        action_ref=source.action_ref,
        status=source.status,
        result=source.result,
        error=source.error,
        attempt=source.attempt,
        completed_at=completed_at,
    )
