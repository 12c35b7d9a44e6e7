"""Every kind of neighbour: queues that refuse, bad messages and addresses, floods, locks, ended sessions.

In: a `Neighbour`. Each kind is one function that disturbs until it is cancelled, and then removes what would
continue to disturb. Each does what an account of the broker, of the API or of the database can do;
docs/security.md lists what the least-privileged account can do.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import asyncpg
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.proof.chaos.neighbours.neighbour import REQUEST_SECONDS, Neighbour, Sending, Session
from tests.proof.chaos.neighbours.schedule import Kind
from tests.support.broker_administration import delete_policy, set_policy
from turnstile.common.broker.topology import (
    EXECUTION_COMPLETED,
    EXECUTOR,
    EXECUTOR_COMPLETIONS,
    EXECUTOR_HEARTBEATS,
)
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded, Hello, Report, Sender
from turnstile.common.worker_wire import (
    WORKER_HELLO,
    WORKER_REPORTS,
    encode_heartbeat,
    encode_reports,
)
from turnstile.localservers.rabbitmq import BrokerServer

Disturb: TypeAlias = Callable[[Neighbour], Awaitable[None]]
Make: TypeAlias = Callable[[int], Sending]
"""Returns the message with this number."""

_CAPACITY: Final = 5
_HEADERS_BYTES: Final = 130_900
UNKNOWN_FROM: Final = 10**15
"""No execution has an id from here on; neighbours invent theirs."""
_AGAIN_SECONDS: Final = 0.2
_LARGE_BYTES: Final = 250_000
_OVERSIZED_BYTES: Final = 700_000
_RECEIVERS: Final = 100
_POLL_SECONDS: Final = 0.05
_READERS: Final = 4
_KILL_EVERY_SECONDS: Final = (0.3, 0.7)
_TAKE_EVERY_SECONDS: Final = 0.05
_KEEP_SECONDS: Final = 1.2
_RELEASED: Final = 5
_HEAD_START_SECONDS: Final = 1.0
_ADDRESSES: Final = {
    "direct reply-to": (
        "amq.rabbitmq.reply-to.x.y",
        "amq.rabbitmq.reply-to.g1h2AA5yZXBseUAxMjM.AAAA",
        "amq.rabbitmq.reply-to.",
    ),
    "our queues": (
        "executor.requests",
        "executor.completions",
        "executor.heartbeats",
        "executor.reports",
        "executions.dead_letters",
    ),
    "malformed": ("x" * 255, " ", "\r\nx: y", "\u202e", "worker.", "amq.gen-\x00", "\u00fc" * 127),
}
_REFUSING: Final[dict[str, Any]] = {
    "x-max-length": _CAPACITY,
    "x-overflow": "reject-publish",
    "x-expires": int(10 * REQUEST_SECONDS * 1000),
}


@dataclass(frozen=True, slots=True)
class Flood:
    """Sends messages at a steady rate, and nothing else."""

    make: Callable[[Neighbour], Make]
    did: str
    per_second: float | Mapping[str, float]
    """By variant, where it depends on it."""

    async def __call__(self, it: Neighbour) -> None:
        """Send until cancelled."""
        rate = self.per_second if isinstance(self.per_second, float) else self.per_second[it.variant]
        async with it.channel() as channel:
            await it.send(channel, self.make(it), per_second=rate, did=self.did)


async def _refusing_listener(it: Neighbour) -> None:
    """Binds a queue that takes five messages and then refuses, and never reads it."""
    name = f"neighbour.listener-{it.number}"

    async def delete(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue(name, passive=True)
        it.did["held"] += queue.declaration_result.message_count or 0
        await queue.delete(if_unused=False, if_empty=False)

    async with it.channel(afterwards=delete) as channel:
        queue = await channel.declare_queue(name, arguments=_REFUSING)
        await queue.bind("executions", it.variant)
        it.did["bound"] += 1
        await asyncio.Event().wait()


async def _refusing_reply_queue(it: Neighbour) -> None:
    """Names a reply queue that is full, or that does not exist."""
    name = f"neighbour.answers-{it.number}"

    def make(_: int) -> Sending:
        return it.request(it.body("neighbour.reply"), reply_to=name)

    async with it.channel(afterwards=lambda channel: channel.queue_delete(name)) as channel:
        if it.variant == "full":
            await channel.declare_queue(name, arguments=_REFUSING)
        await it.send(channel, make, per_second=15.0, did="requests")


def _poison_reply_address(it: Neighbour) -> Make:
    """Names a reply address where an answer does harm."""
    addresses = _ADDRESSES[it.variant]

    def make(number: int) -> Sending:
        body = it.body("neighbour.reply" if number % 2 else "neighbour.unknown")
        return it.request(body, reply_to=addresses[number // 2 % len(addresses)])

    return make


def _bad_messages(it: Neighbour) -> Make:
    """Sends some hundreds of invalid messages, some of them with headers as large as a frame."""
    bad = _bad(it)
    return lambda _: next(bad)


def _bad(it: Neighbour) -> Iterator[Sending]:
    good = it.body("neighbour.reply")
    bodies: list[bytes | dict[str, object]] = [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b'{"action_ref": "neighbour.reply"',
        b"[" * 10_000,
        b'"' + b"x" * 10_000 + b'"',
        b"null",
        {},
        {"action_ref": 7},
        {"action_ref": "neighbour.unknown"},
        {"action_ref": "neighbour.reply", "parameters": []},
        {"action_ref": "neighbour.reply", "parameters": {"text": "\0"}},
        {"action_ref": "neighbour.reply", "ttl": -1},
        {"action_ref": "neighbour.reply", "no_such_field": 1},
        {"action_ref": "neighbour.reply", "callback_url": "file:///etc/passwd"},
    ]
    for number, body in enumerate(cycle(bodies)):
        match number % 40:
            case 0:
                # A dead letter repeats the headers of its message, and adds its own.
                yield it.request(b"not json", headers={"x-note": "h" * _HEADERS_BYTES})
            case 1:
                yield "executions", "execution.requested", it.message(good, "execution.no_such_type")
            case 2:
                yield it.request(good, headers={"schema_version": 99})
            case 3:
                yield it.request(good, headers={"schema_version": {"deep": [[[]]]}, "x-tries": -5})
            case _:
                yield it.request(body)


def _unknown_cancels(it: Neighbour) -> Make:
    """Cancels some thousands of executions that do not exist, by id and by key."""
    kind = "execution.cancel_requested"
    address = ("executions", kind) if it.variant == "by the exchange" else ("", "executor.requests")

    def make(number: int) -> Sending:
        by_key = {"idempotency_key": f"never {it.number} {number}"}
        unknown = by_key if number % 2 else {"execution_id": UNKNOWN_FROM + number}
        return *address, it.message(unknown, kind)

    return make


def _unknown_completions(it: Neighbour) -> Make:
    """Publishes ends of executions that do not exist: to all listeners, or as a worker does."""
    sender = Sender(worker_id=f"neighbour-{it.number}", session=1, secret="guessed")

    def as_event(number: int) -> Sending:
        body = {
            "execution_id": UNKNOWN_FROM + number,
            "action_id": 1,
            "action_ref": "neighbour.reply",
            "status": "completed",
            "result": None,
            "error": None,
            "attempt": 1,
            "completed_at": "2026-11-22T00:00:00Z",
        }
        return "executions", EXECUTION_COMPLETED, it.message(body, EXECUTION_COMPLETED)

    def as_report(number: int) -> Sending:
        ended = AttemptEnded(
            execution_id=UNKNOWN_FROM + number, grant=Grant(1, number + 1), status=Status.COMPLETED
        )
        report = Report(sender=sender, number=number + 1, kept_from=1, epoch_seen=0, body=ended)
        return EXECUTOR, EXECUTOR_COMPLETIONS, it.message(encode_reports([report]), WORKER_REPORTS)

    return as_report if it.variant == "as workers send them" else as_event


def _mute_workers(it: Neighbour) -> Make:
    """Registers workers that never answer, each with an id of its own and a queue that does not exist."""
    pool = f"mute-{it.number}" if it.variant == "of its pool" else "default"

    def make(number: int) -> Sending:
        hello = Hello(
            sender=Sender(worker_id=f"mute-{it.number}-{number}", session=1, secret="secret"),
            name="mute",
            pools=(pool,),
            actions=None,
            concurrency=1000,
            lease_seconds=30.0,
            epoch_seen=0,
        )
        return EXECUTOR, EXECUTOR_HEARTBEATS, it.message(encode_heartbeat(hello), WORKER_HELLO)

    return make


async def _refusing_dead_letters(it: Neighbour) -> None:
    """Bounds the dead-letter queue by a policy, and sends messages that end there."""
    vhost, name = it.access.vhost, f"neighbour-{it.number}"
    bound: dict[str, str | int] = {"max-length": _CAPACITY, "overflow": "reject-publish"}

    def limit() -> None:
        with BrokerServer(it.access.amqp_url, it.access.management_url) as broker:
            set_policy(broker, vhost, name, r"^executions\.dead_letters$", bound)

    def lift() -> None:
        with BrokerServer(it.access.amqp_url, it.access.management_url) as broker:
            delete_policy(broker, vhost, name)

    try:
        await asyncio.to_thread(limit)
        it.did["policies"] += 1
        async with it.channel() as channel:
            await it.send(channel, lambda _: it.request(b"not json"), per_second=10.0, did="messages")
    finally:
        await asyncio.to_thread(lift)


def _huge_requests(it: Neighbour) -> Make:
    """Submits an action of its own with parameters of the largest size, or larger."""
    match it.variant:
        case "dense":
            content = b"[" + b",".join([b"{}"] * (_LARGE_BYTES // 3)) + b"]"
        case "oversized":
            content = b'"' + b"x" * _OVERSIZED_BYTES + b'"'
        case _:
            content = b'"' + b"x" * _LARGE_BYTES + b'"'
    ttl = it.body("")["ttl"]
    body = b'{"action_ref": "neighbour.huge", "ttl": %f, "parameters": {"content": %b}}' % (ttl, content)
    return lambda _: it.request(body)


async def _full_queue(it: Neighbour) -> None:
    """Submits far more than its queue of ten takes; every other request has a reply queue."""

    async def count(_: AbstractIncomingMessage) -> None:
        it.did["answers"] += 1

    async with it.channel() as channel:
        answers = await channel.declare_queue(exclusive=True)
        await answers.consume(count, no_ack=True)

        def make(number: int) -> Sending:
            body = it.body("neighbour.full", parameters={"seconds": 0.3})
            return it.request(body, reply_to=answers.name if number % 2 else None)

        await it.send(channel, make, per_second=60.0, did="requests")


def _many_keys(it: Neighbour) -> Make:
    """Uses a new concurrency key for each request."""
    return lambda number: it.request(it.body("neighbour.keyed", parameters={"key": f"{it.number} {number}"}))


async def _stuck_receivers(it: Neighbour) -> None:
    """Names webhook receivers, each with an address of its own, that accept a connection and never answer."""
    with _silent_receivers(it.number) as urls:

        def make(number: int) -> Sending:
            return it.request(it.body("neighbour.callback", callback_url=urls[number % len(urls)]))

        async with it.channel() as channel:
            await it.send(channel, make, per_second=25.0, did="requests")


@contextmanager
def _silent_receivers(number: int) -> Iterator[list[str]]:
    with ExitStack() as open_sockets:
        urls = []
        for host in range(_RECEIVERS):
            listener = open_sockets.enter_context(socket.socket())
            # The kernel accepts the connection and the request; no process reads them.
            listener.bind((f"127.9.{number % 250}.{host + 1}", 0))
            listener.listen(64)
            address, port = listener.getsockname()
            urls.append(f"http://{address}:{port}/")
        yield urls


async def _locked_row(it: Neighbour) -> None:
    """Locks one row of its own action for as long as it lasts, while requests for that action continue."""
    async with it.session() as session, it.channel() as channel:
        await _lock(it, session, channel)
        it.did["locked"] += 1
        await it.send(channel, lambda number: _locked(it, number), per_second=8.0, did="requests")


async def _lock(it: Neighbour, session: Session, channel: AbstractChannel) -> None:
    key = f"lock {it.access.seed} {it.number}"
    # Before it an execution runs that ends shortly after the row is locked.
    runs = it.variant != "waiting execution"
    if not runs:
        await it.publish(channel, _locked(it, 0, _HEAD_START_SECONDS, idempotency_key=f"{key} first"))
        await _started(session, f"{key} first")
    await it.publish(channel, _locked(it, 0, _HEAD_START_SECONDS if runs else 0.0, idempotency_key=key))
    row = await _started(session, key, may_wait=not runs)
    await session.execute("BEGIN")
    if it.variant == "action":
        await session.execute(
            "SELECT FROM ledger.definition WHERE kind = 'action' AND name = $1 FOR UPDATE", row["action_ref"]
        )
    else:
        await session.execute("SELECT FROM ledger.execution WHERE id = $1 FOR UPDATE", row["id"])


def _locked(it: Neighbour, number: int, seconds: float = 0.0, **fields: Any) -> Sending:
    ref = "neighbour.locked-keyed" if it.variant == "action" else "neighbour.locked"
    parameters = {"key": f"{it.number} {number}"} if it.variant == "action" else {}
    return it.request(it.body(ref, parameters={"seconds": seconds, **parameters}, **fields))


async def _started(session: Session, key: str, *, may_wait: bool = False) -> asyncpg.Record:
    # Its pool may have no capacity at first.
    before = {"scheduled"} if may_wait else {"queued", "scheduled"}
    while True:
        row = await session.fetchrow("SELECT * FROM ledger.current_execution WHERE idempotency_key = $1", key)
        if row is not None and row["status"] not in before:
            return row
        await asyncio.sleep(_POLL_SECONDS)


async def _killed_sessions(it: Neighbour) -> None:
    """Ends one database session of a service after the other, chosen at random."""
    async with it.session() as session:
        while True:
            pids = await session.fetch(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'turnstile %' ORDER BY pid"
            )
            if pids:
                await session.execute("SELECT pg_terminate_backend($1)", it.rng.choice(pids)["pid"])
                it.did["sessions"] += 1
            await asyncio.sleep(it.rng.uniform(*_KILL_EVERY_SECONDS))


async def _no_free_connection(it: Neighbour) -> None:
    """Takes every connection that the server still offers, and now and then releases some for a moment."""
    taken: list[Session] = []
    url = it.access.database_url if it.variant == "all" else await _ordinary_account(it)
    try:
        released_at = asyncio.get_running_loop().time()
        while True:
            with suppress(asyncpg.TooManyConnectionsError):
                while True:
                    taken.append(await asyncpg.connect(url, timeout=REQUEST_SECONDS))
                    it.did["connections"] += 1
            if asyncio.get_running_loop().time() > released_at + _KEEP_SECONDS:
                released_at = asyncio.get_running_loop().time()
                for session in taken[:_RELEASED]:
                    session.terminate()
                del taken[:_RELEASED]
                it.did["releases"] += 1
            await asyncio.sleep(_TAKE_EVERY_SECONDS)
    finally:
        for session in taken:
            session.terminate()


async def _ordinary_account(it: Neighbour) -> str:
    """Return the URL of an account to which the server does not offer its reserved connections."""
    async with it.session() as session:
        name = f"neighbour_{it.number}"
        await session.execute(f"CREATE ROLE {name} LOGIN")
    parts = urlsplit(it.access.database_url)
    return parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}").geturl()


async def _old_snapshot(it: Neighbour) -> None:
    """Reads once and leaves its transaction open, as a backup or a forgotten session does."""
    async with it.session() as session:
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await session.fetch("SELECT count(*) FROM ledger.execution")
        it.did["snapshots"] += 1
        await asyncio.Event().wait()


async def _scanning_readers(it: Neighbour) -> None:
    """Reads the tables that change most, from end to end, in four sessions at once."""

    async def scan() -> None:
        async with it.session() as session:
            while True:
                await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                for table in ("waiting", "granted", "live", "turn", "inbox", "execution"):
                    await session.fetch(f"SELECT count(*) FROM ledger.{table}")
                    it.did["scans"] += 1
                    await asyncio.sleep(_POLL_SECONDS)
                await session.execute("COMMIT")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_READERS):
            tasks.create_task(scan(), name="scan")


DISTURB: Final[Mapping[Kind, Disturb]] = {
    Kind.REFUSING_LISTENER: _refusing_listener,
    Kind.REFUSING_REPLY_QUEUE: _refusing_reply_queue,
    Kind.POISON_REPLY_ADDRESS: Flood(_poison_reply_address, "requests", 10.0),
    Kind.BAD_MESSAGES: Flood(_bad_messages, "messages", 60.0),
    # The rate follows the cost of reading one.
    Kind.HUGE_REQUESTS: Flood(_huge_requests, "requests", {"large": 60.0, "dense": 3.0, "oversized": 15.0}),
    Kind.STUCK_RECEIVERS: _stuck_receivers,
    Kind.LOCKED_ROW: _locked_row,
    Kind.MUTE_WORKERS: Flood(_mute_workers, "hellos", 5.0),
    Kind.UNKNOWN_CANCELS: Flood(_unknown_cancels, "cancels", 400.0),
    Kind.UNKNOWN_COMPLETIONS: Flood(_unknown_completions, "completions", 200.0),
    Kind.KILLED_SESSIONS: _killed_sessions,
    Kind.NO_FREE_CONNECTION: _no_free_connection,
    Kind.REFUSING_DEAD_LETTERS: _refusing_dead_letters,
    Kind.FULL_QUEUE: _full_queue,
    Kind.MANY_KEYS: Flood(_many_keys, "keys", 100.0),
    Kind.OLD_SNAPSHOT: _old_snapshot,
    Kind.SCANNING_READERS: _scanning_readers,
}
assert set(DISTURB) == set(Kind)
