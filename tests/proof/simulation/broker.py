"""A simulated RabbitMQ, as far as the design uses it.

Durable queues with a single active consumer, order, prefetch and redelivery to the front; session queues that
vanish with their connection; confirms; replies and events. A connection that breaks loses what is not
acknowledged to the next consumer. A paused or unreachable peer is noticed by missing heartbeats; until then
its messages stay with it. What was confirmed survives an outage, unless a purge or a policy drops it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.proof.simulation.loop import SimulatedLoop, Timeouts
from tests.proof.simulation.processes import Process, State
from turnstile.common.domain.errors import Unavailable
from turnstile.common.worker_protocol import Heartbeat, Hello, Report, ToSession
from turnstile.executor.leader.ports import BrokerUnavailable, Delivery, Publication, StatusChanged

REQUESTS: Final = "executor.requests"
COMPLETIONS: Final = "executor.completions"
HEARTBEATS: Final = "executor.heartbeats"
LEADER_QUEUES: Final = (REQUESTS, COMPLETIONS, HEARTBEATS)
HEARTBEAT_SECONDS: Final = 2.0
NOTICED_AFTER_SECONDS: Final = 2.5 * HEARTBEAT_SECONDS
PREFETCH: Final = 2000
PUBLISH_TIMEOUT_SECONDS: Final = 2.0
HEARTBEAT_TIMEOUT_SECONDS: Final = 0.5


class Message:
    """A message in a queue. Its key is the same for each copy of it."""

    __slots__ = ("body", "correlation_id", "is_redelivered", "key", "reply_to")

    def __init__(
        self, body: Any, key: UUID, reply_to: str | None = None, correlation_id: str | None = None
    ) -> None:
        self.body = body
        self.key = key
        self.reply_to = reply_to
        self.correlation_id = correlation_id
        self.is_redelivered = False


class Queue:
    """A durable queue. The first consumer is the active one."""

    __slots__ = ("consumers", "drop", "is_due", "messages", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: deque[Message] = deque()
        self.consumers: list[Consumer] = []
        self.is_due = False
        self.drop = 0.0
        """By a policy: this share of what arrives is confirmed and lost."""


class Consumer:
    """A consumer of one queue, on both sides: what was sent to it and not acknowledged, what it can take."""

    __slots__ = ("buffer", "connection", "queue", "sent", "transit", "unacknowledged")

    def __init__(self, connection: "Connection", queue: Queue) -> None:
        self.connection = connection
        self.queue = queue
        self.unacknowledged: dict[int, Message] = {}
        self.buffer: deque[tuple[int, Message]] = deque()
        self.transit: list[tuple[int, Message]] = []
        """Sent into a partition: it arrives if that ends before the connection."""
        self.sent = 0


class Connection:
    """A connection that consumes."""

    def __init__(self, server: "Rabbit", process: Process, *, notice: Callable[[], None]) -> None:
        self.server = server
        self.process = process
        self.is_open = True
        """As the broker sees it."""
        self.is_known_closed = False
        """As the client sees it."""
        self.consumers: dict[str, Consumer] = {}
        self.session: str | None = None
        self.notice = notice
        """Called when the client notices that it is closed."""
        self.last_arrival = 0.0

    def close(self, *, is_noticed: bool = True) -> None:
        """The broker closes it, or learns that it is gone: what it holds goes back to the queues."""
        if self.is_open:
            self.is_open = False
            self.server.forget(self)
        if is_noticed and not self.is_known_closed:
            self.server.loop.after(self.server.latency(), self.learn)

    def learn(self) -> None:
        """The client notices, unless it does not run."""
        if self.process.state is State.RUNNING and not self.is_known_closed:
            self.is_known_closed = True
            self.notice()


class Link:
    """The path on which a process publishes. Messages keep their order while it stands."""

    __slots__ = ("deferred", "last_arrival", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.last_arrival = 0.0
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What was sent into a partition: it arrives if that ends soon enough."""


class Rabbit:
    """The broker."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.is_up = True
        self.generation = 0
        """Counts its starts."""
        self.queues = {name: Queue(name) for name in LEADER_QUEUES}
        self.sessions: dict[str, SimulatedSessionQueue] = {}
        self.on_taken: Callable[[str, Sequence[ToSession]], None] = lambda *_: None
        """Called with the name of a session, and what its worker takes from it."""
        self.connections: dict[Connection, None] = {}
        self.cut: dict[Process, float] = {}
        """Processes that cannot reach it, and since when."""
        self.confirm_seconds = 0.001
        self.listeners_hang_until = 0.0
        """Until then the queue of a listener takes nothing."""
        self.on_event: Callable[[Mapping[str, Any]], bool] = lambda _: False
        """Receives events; returns whether a listener is bound."""
        self.on_reply: Callable[[str, Mapping[str, Any]], bool] = lambda *_: False
        self.on_dead_letter: Callable[[Any], None] = lambda _: None
        self.dropped = 0
        self.arrived = dict.fromkeys(LEADER_QUEUES, 0)
        """How many messages each queue got."""
        self.publish_timeouts = Timeouts(loop, PUBLISH_TIMEOUT_SECONDS)
        self.probe_timeouts = Timeouts(loop, HEARTBEAT_TIMEOUT_SECONDS)
        self._keys = 0
        self._links: dict[Process, Link] = {}
        self._known: dict[Process, list[Connection]] = {}

    def latency(self) -> float:
        return 0.0002 + 0.0003 * self.random.random()

    def new_key(self) -> UUID:
        self._keys += 1
        return UUID(int=(1 << 120) | self._keys)

    # Faults.

    def stop(self) -> None:
        """All connections drop; durable queues and their messages survive."""
        self.is_up = False
        self.generation += 1
        for connection in list(self.connections):
            connection.close()

    def start(self) -> None:
        self.is_up = True

    def break_connections(self, process: Process) -> None:
        """The connections of one process break; it can connect again at once."""
        for connection in [each for each in self.connections if each.process is process]:
            connection.close()

    def partition(self, process: Process) -> None:
        """Nothing passes between a process and the broker any more."""
        if process not in self.cut:
            self.cut[process] = self.loop.now
            self._watch(process)

    def heal(self, process: Process) -> None:
        """Everything passes again; what was under way arrives where the connection still stands."""
        if self.cut.pop(process, None) is None:
            return
        link = self._links.get(process)
        if link is not None:
            deferred, link.deferred = link.deferred, []
            for callback, args in deferred:
                self.loop.after(self.latency(), callback, *args)
        for connection in [each for each in self.connections if each.process is process]:
            for consumer in connection.consumers.values():
                consumer.buffer.extend(consumer.transit)
                consumer.transit.clear()
                self._schedule(consumer.queue)
            process.wake()
        for session in self.sessions.values():
            if session.process is process:
                session.heal()

    def purge(self, name: str) -> int:
        """Drop what waits in a queue; return how many messages."""
        queue = self.queues[name]
        count = len(queue.messages)
        queue.messages.clear()
        self.dropped += count
        return count

    def attach(self, process: Process) -> None:
        """Note a process: its death closes its connections, its pause is noticed by missing heartbeats."""
        process.at_death.append(lambda: self._died(process))
        process.at_pause.append(lambda: self._watch(process))
        process.at_resume.append(lambda: self._resumed(process))

    def _died(self, process: Process) -> None:
        for connection in [each for each in self.connections if each.process is process]:
            # What its kernel still has in hand arrives before.
            self.loop.after(self.latency() * 2, connection.close)

    def _watch(self, process: Process) -> None:
        since = self.loop.now
        after = NOTICED_AFTER_SECONDS * (0.9 + 0.2 * self.random.random())
        self.loop.after(after, self._notice, process, since)

    def _notice(self, process: Process, since: float) -> None:
        is_paused = process.state is State.PAUSED and process.paused_at == since
        is_cut = self.cut.get(process) == since
        if is_paused or is_cut:
            for connection in [each for each in self.connections if each.process is process]:
                connection.close(is_noticed=is_cut)
            link = self._links.get(process)
            if is_cut and link is not None:
                link.deferred.clear()

    def _resumed(self, process: Process) -> None:
        for connection in list(self._all_of(process)):
            if not connection.is_open:
                self.loop.after(0.02 * self.random.random(), connection.learn)

    def _all_of(self, process: Process) -> list[Connection]:
        return [each for each in self._known.get(process, ()) if not each.is_known_closed]

    # Connections.

    def connect(self, process: Process, notice: Callable[[], None]) -> Connection:
        connection = Connection(self, process, notice=notice)
        self.connections[connection] = None
        known = [each for each in self._known.get(process, ()) if not each.is_known_closed]
        self._known[process] = [*known, connection]
        return connection

    def link(self, process: Process) -> Link:
        found = self._links.get(process)
        if found is None:
            found = self._links[process] = Link(process)
        return found

    def reaches(self, process: Process) -> bool:
        return self.is_up and process not in self.cut

    def forget(self, connection: Connection) -> None:
        """A connection is gone: its session vanishes, its messages go back to the front in their order."""
        self.connections.pop(connection, None)
        if connection.session is not None:
            self.sessions.pop(connection.session, None)
        for consumer in connection.consumers.values():
            queue = consumer.queue
            queue.consumers.remove(consumer)
            back = list(consumer.unacknowledged.values())
            for message in back:
                message.is_redelivered = True
            queue.messages.extendleft(reversed(back))
            consumer.unacknowledged.clear()
            self._schedule(queue)

    def consume(self, connection: Connection, name: str) -> None:
        queue = self.queues[name]
        consumer = connection.consumers[name] = Consumer(connection, queue)
        queue.consumers.append(consumer)
        self._schedule(queue)

    # Messages.

    def send(self, link: Link, callback: Callable[..., None], *args: Any) -> None:
        """Let something that a process sends arrive, in order."""
        arrival = max(self.loop.now + self.latency(), link.last_arrival)
        link.last_arrival = arrival
        self.loop.at(arrival, self._passed, link, callback, args)

    def _passed(self, link: Link, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if link.process in self.cut:
            link.deferred.append((callback, args))
        elif self.is_up:
            callback(*args)

    def enqueue(self, name: str, messages: Sequence[Message]) -> None:
        """Put messages into a durable queue."""
        queue = self.queues[name]
        self.arrived[name] += len(messages)
        if queue.drop:
            kept = [each for each in messages if self.random.random() >= queue.drop]
            self.dropped += len(messages) - len(kept)
            messages = kept
        queue.messages.extend(messages)
        self._schedule(queue)

    def _schedule(self, queue: Queue) -> None:
        if not queue.is_due and queue.messages and queue.consumers:
            queue.is_due = True
            self.loop.after(self.latency(), self._flush, queue)

    def _flush(self, queue: Queue) -> None:
        queue.is_due = False
        if not self.is_up or not queue.consumers:
            return
        consumer = queue.consumers[0]
        room = min(PREFETCH - len(consumer.unacknowledged), len(queue.messages))
        if room <= 0:
            return
        is_reachable = consumer.connection.process not in self.cut
        for _ in range(room):
            message = queue.messages.popleft()
            consumer.sent += 1
            consumer.unacknowledged[consumer.sent] = message
            (consumer.buffer if is_reachable else consumer.transit).append((consumer.sent, message))
        if is_reachable:
            consumer.connection.process.wake()

    def acknowledge(self, consumer: Consumer, tags: Sequence[int]) -> None:
        if not consumer.connection.is_open:
            return
        for tag in tags:
            consumer.unacknowledged.pop(tag, None)
        self._schedule(consumer.queue)

    async def publish(
        self, process: Process, messages: Sequence[Any], deliver: Callable[[Sequence[Any]], Any],
        error: type[Exception], *, is_event: bool = False,
    ) -> Any:  # fmt: skip
        """Publish for a process; return what `deliver` returns. Raises `error`: not confirmed."""
        if process.is_hindered:
            await process.enter()
        outcome = process.next_outcome("publish") if messages else None
        sending = Sending(self, self.link(process), messages, deliver, error, outcome, is_event)
        if self.is_up:
            sending.begin()
        else:
            self.loop.after(0.01, process.answer, sending.future, error("no connection"))
        return await sending.future

    def route(self, publications: Sequence[Publication]) -> list[bool]:
        """Route what the leader publishes."""
        routed: list[bool] = []
        for each in publications:
            to, body = each.to, each.body
            if to.startswith("session "):
                session = self.sessions.get(to)
                if session is not None:
                    session.arrive(body)
                routed.append(session is not None)
            elif to in self.queues:
                self.enqueue(to, [Message(body, self.new_key())])
                routed.append(True)
            elif to == "event":
                assert isinstance(body, Mapping)
                routed.append(self.on_event(body))
            elif to.startswith("reply "):
                assert isinstance(body, Mapping)
                routed.append(self.on_reply(to.removeprefix("reply "), body))
            else:
                self.on_dead_letter(each)
                routed.append(True)
        return routed


class LeaderBroker:
    """The broker, as a port of one leader."""

    def __init__(self, server: Rabbit, process: Process) -> None:
        self._server = server
        self._process = process
        self._connection: Connection | None = None
        self._events = Link(process)
        server.attach(process)

    @property
    def is_open(self) -> bool:
        connection = self._connection
        return connection is not None and not connection.is_known_closed

    async def open(self) -> None:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        future: asyncio.Future[bool] = server.loop.create_future()
        if not server.reaches(process) or process.next_outcome("open") is not None:
            server.loop.after(0.5, process.answer, future, BrokerUnavailable("no connection"))
        else:
            server.loop.after(4 * server.latency(), self._opened, future)
        await future

    def _opened(self, future: "asyncio.Future[bool]") -> None:
        process, server = self._process, self._server
        if not process.is_alive:
            return
        if not server.reaches(process):
            process.answer(future, BrokerUnavailable("no connection"))
            return
        if self._connection is not None:
            self._connection.close()
        self._connection = server.connect(process, process.wake)
        for name in LEADER_QUEUES:
            server.consume(self._connection, name)
        process.answer(future, True)

    async def close(self) -> None:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.is_known_closed = True
            server.send(server.link(process), connection.close)

    def take(self, queue: str, count: int) -> list[Delivery]:
        self._process.check()
        connection = self._connection
        if connection is None or connection.is_known_closed:
            return []
        consumer = connection.consumers[queue]
        buffer = consumer.buffer
        found: list[Delivery] = []
        while buffer and len(found) < count:
            tag, message = buffer.popleft()
            found.append(
                Delivery(
                    queue, (consumer, tag), message.body, message.key, message.reply_to,
                    message.correlation_id, message.is_redelivered,
                )
            )  # fmt: skip
        return found

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._process.check()
        by_consumer: dict[Consumer, list[int]] = {}
        for each in deliveries:
            consumer, tag = each.tag
            by_consumer.setdefault(consumer, []).append(tag)
        for consumer, tags in by_consumer.items():
            if consumer.connection is self._connection and not consumer.connection.is_known_closed:
                link = self._server.link(self._process)
                self._server.send(link, self._server.acknowledge, consumer, tags)

    async def publish(self, publications: Sequence[Publication]) -> list[bool]:
        server, is_event = self._server, bool(publications) and publications[0].to == "event"
        routed: list[bool] = await server.publish(
            self._process, publications, server.route, BrokerUnavailable, is_event=is_event
        )
        return routed

    async def publish_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        await self.publish([Publication(to="event", body=event) for event in events])

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        pass


class Sending:
    """Messages that are published, and not confirmed yet. `outcome` says what goes wrong with them."""

    __slots__ = (
        "deliver", "error", "future", "generation", "is_event", "link", "messages", "outcome", "process",
        "server",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917
        self, server: Rabbit, link: Link, messages: Sequence[Any], deliver: Callable[[Sequence[Any]], Any],
        error: type[Exception], outcome: tuple[str, float] | None, is_event: bool,
    ) -> None:  # fmt: skip
        self.server, self.process, self.link = server, link.process, link
        self.messages, self.deliver, self.error = messages, deliver, error
        self.outcome, self.is_event = outcome, is_event
        self.future: asyncio.Future[Any] = server.loop.create_future()
        self.generation = server.generation

    def begin(self) -> None:
        server, loop, outcome, link = self.server, self.server.loop, self.outcome, self.link
        server.publish_timeouts.watch(self.future, self._fail)
        match outcome:
            case ("never", _):
                loop.after(0.05, self._fail)
            case ("late", seconds):
                loop.after(0.05, self._fail)
                loop.after(seconds, self._arrive_late)
            case ("part", share):
                self.messages = self.messages[: int(share * len(self.messages))]
                server.send(link, self._arrive_only)
                loop.after(0.01, self._fail)
            case ("unconfirmed", _):
                server.send(link, self._arrive_only)
                loop.after(0.01, self._fail)
            case _:
                server.send(link, self._arrive)

    def _fail(self, _: object = None) -> None:
        if not self.future.done():
            self.process.answer(self.future, self.error("not confirmed in time"))

    def _arrive_only(self) -> None:
        self.deliver(self.messages)

    def _arrive_late(self) -> None:
        if self.server.is_up:
            self.deliver(self.messages)

    def _arrive(self) -> None:
        if self.is_event and not self._is_heard():
            return
        answer = self.deliver(self.messages)
        delay = self.server.confirm_seconds + self.server.latency()
        if self.outcome is not None:
            delay += self.outcome[1]
        self.server.loop.after(delay, self._confirm, answer)

    def _is_heard(self) -> bool:
        """Return whether the listeners' queues take messages; if not, it arrives when they do."""
        server = self.server
        if server.loop.now < server.listeners_hang_until:
            server.loop.at(server.listeners_hang_until, self._arrive)
            return False
        return True

    def _confirm(self, answer: Any) -> None:
        server = self.server
        if self.future.done():
            return
        if server.generation != self.generation:
            self._fail()
        elif server.reaches(self.process):
            self.process.answer(self.future, answer)


class SimulatedSessionQueue:
    """The queue of a worker's session, as a port of the worker."""

    def __init__(self, server: Rabbit, process: Process, name: str) -> None:
        self.name = name
        self._server = server
        self.process = process
        self._connection = server.connect(process, self._lost)
        self._connection.session = name
        server.sessions[name] = self
        self._buffer: deque[ToSession] = deque()
        self._transit: list[ToSession] = []
        self._waiter: asyncio.Future[None] | None = None
        self._probes: list[asyncio.Future[None]] = []

    def arrive(self, message: Any) -> None:
        """The broker has routed a message to the queue."""
        self._pass(self._deliver, message)

    def _pass(self, callback: Callable[..., None], *args: Any) -> None:
        server = self._server
        arrival = max(server.loop.now + server.latency(), self._connection.last_arrival)
        self._connection.last_arrival = arrival
        server.loop.at(arrival, callback, *args)

    def heal(self) -> None:
        """A partition is over: what was sent into it arrives."""
        transit, self._transit = self._transit, []
        for message in transit:
            self._pass(self._deliver, message)

    def _deliver(self, message: ToSession) -> None:
        if not self._connection.is_open:
            return
        if self.process in self._server.cut:
            self._transit.append(message)
            return
        self._buffer.append(message)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self.process.answer(waiter, None)

    def _lost(self) -> None:
        self._buffer.clear()
        self._wake()
        for future in self._probes:
            if not future.done():
                self.process.answer(future, Unavailable("the connection is gone"))
        self._probes.clear()

    async def take(self, count: int) -> list[ToSession]:
        process = self.process
        if process.is_hindered:
            await process.enter()
        while not self._buffer:
            if self._connection.is_known_closed:
                raise Unavailable("the connection is gone")
            waiter: asyncio.Future[None] = self._server.loop.create_future()
            self._waiter = waiter
            await waiter
        if self._connection.is_known_closed:
            raise Unavailable("the connection is gone")
        found: list[ToSession] = []
        while self._buffer and len(found) < count:
            found.append(self._buffer.popleft())
        self._server.on_taken(self.name, found)
        return found

    async def probe(self) -> None:
        process, server = self.process, self._server
        if process.is_hindered:
            await process.enter()
        if self._connection.is_known_closed:
            raise Unavailable("the connection is gone")
        future: asyncio.Future[None] = server.loop.create_future()
        self._probes = [each for each in self._probes if not each.done()]
        self._probes.append(future)
        server.probe_timeouts.watch(future, self._expire)
        server.send(server.link(process), self._pass, self._probed, future)
        await future

    def _probed(self, future: "asyncio.Future[None]") -> None:
        if self._connection.is_open and self.process not in self._server.cut and not future.done():
            self.process.answer(future, None)

    def _expire(self, future: "asyncio.Future[None]") -> None:
        if not future.done():
            self.process.answer(future, Unavailable("no answer"))

    def close(self) -> None:
        if self.process.is_alive and not self._connection.is_known_closed:
            self._connection.is_known_closed = True
            self._lost()
            self._server.send(self._server.link(self.process), self._connection.close)


class WorkerBroker:
    """The broker, as a port of one worker."""

    def __init__(self, server: Rabbit, process: Process) -> None:
        self._server = server
        self._process = process
        self._heartbeats = Link(process)
        server.attach(process)

    async def open_session(self, worker_id: str, session: int) -> SimulatedSessionQueue:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        future: asyncio.Future[SimulatedSessionQueue] = server.loop.create_future()
        if not server.reaches(process) or process.next_outcome("open") is not None:
            server.loop.after(0.3, process.answer, future, Unavailable("no connection"))
        else:
            name = f"session {worker_id} {session}"
            server.loop.after(4 * server.latency(), self._opened, name, future)
        return await future

    def _opened(self, name: str, future: "asyncio.Future[SimulatedSessionQueue]") -> None:
        process, server = self._process, self._server
        if not process.is_alive:
            return
        if server.reaches(process) and name not in server.sessions:
            process.answer(future, SimulatedSessionQueue(server, process, name))
        else:
            process.answer(future, Unavailable("no connection"))

    async def publish_reports(self, reports: Sequence[Report]) -> None:
        server = self._server
        messages = [Message(each, server.new_key()) for each in reports]
        await server.publish(self._process, messages, partial(server.enqueue, COMPLETIONS), Unavailable)

    async def send_heartbeat(self, message: Hello | Heartbeat) -> None:
        process, server = self._process, self._server
        if process.is_hindered:
            await process.enter()
        future: asyncio.Future[None] = server.loop.create_future()
        if not server.is_up:
            server.loop.after(0.01, process.answer, future, Unavailable("no connection"))
        elif process in server.cut:
            server.loop.after(HEARTBEAT_TIMEOUT_SECONDS, process.answer, future, Unavailable("no answer"))
        else:
            messages = [Message(message, server.new_key())]
            server.send(self._heartbeats, server.enqueue, HEARTBEATS, messages)
            server.loop.after(server.latency(), process.answer, future, None)
        await future
