"""Neighbours at the broker: queues that refuse, addresses that nobody should name, a pool that is taken.

In: a disturbance. Out: see `Neighbour`. Each is what anybody with an account of the broker can do; which of
them the least-privileged account can do stands in docs/security.md.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import Final

import httpx
from aio_pika.abc import AbstractChannel, AbstractQueue
from aiormq.exceptions import ChannelNotFoundEntity

from tests.proof.chaos.neighbours.neighbour import ASK_SECONDS, Neighbour, Sending
from turnstile.localservers.vhosts import BrokerServer

_TAKES_MAX: Final = 5
_HEADERS_BYTES: Final = 130_900
MADE_UP_FROM: Final = 10**15
"""No execution has an id from here on; neighbours make up theirs."""
_AGAIN_SECONDS: Final = 0.2


class RefusingListener(Neighbour):
    """Listens to ends with a queue that takes five messages and then refuses, and never reads it."""

    async def disturb(self) -> None:
        """Bind the queue, and leave it."""
        async with self.channel() as channel:
            queue = await _refusing_queue(channel, self._name)
            await queue.bind("executions", self.variant)
            self.did["bound"] += 1
            await asyncio.Event().wait()

    async def take_back(self) -> None:
        """Delete the queue."""
        async with self.channel() as channel:
            queue = await channel.declare_queue(self._name, passive=True)
            self.did["kept"] += queue.declaration_result.message_count or 0
            await queue.delete(if_unused=False, if_empty=False)

    @property
    def _name(self) -> str:
        return f"neighbour.listener-{self.number}"


class RefusingReplyQueue(Neighbour):
    """Wants its answers in a queue that is full, or that is not there."""

    async def disturb(self) -> None:
        """Ask, and never read the answers."""
        async with self.channel() as channel:
            if self.variant == "full":
                await _refusing_queue(channel, self._name)
            await self.send(
                channel,
                lambda _: self.request(self.body("neighbour.reply"), reply_to=self._name),
                per_second=15,
                did="requests",
            )

    async def take_back(self) -> None:
        """Delete the queue."""
        async with self.channel() as channel:
            await channel.queue_delete(self._name)

    @property
    def _name(self) -> str:
        return f"neighbour.answers-{self.number}"


class PoisonReplyAddress(Neighbour):
    """Wants its answers where an answer does harm."""

    _ADDRESSES: Final = {
        "direct reply-to": (
            "amq.rabbitmq.reply-to.x.y",
            "amq.rabbitmq.reply-to.g1h2AA5yZXBseUAxMjM.AAAA",
            "amq.rabbitmq.reply-to.",
        ),
        "our queues": (
            "executor.requests",
            "executor.completions",
            "worker.default",
            "executor.retry",
            "executions.dead_letters",
        ),
        "malformed": ("x" * 255, " ", "\r\nx: y", "\u202e", "worker.", "amq.gen-\x00", "\u00fc" * 127),
    }

    async def disturb(self) -> None:
        """Ask for answers at each address in turn; every other request is a bad one."""
        addresses = self._ADDRESSES[self.variant]

        def make(number: int) -> Sending:
            body = self.body("neighbour.reply" if number % 2 else "neighbour.unknown")
            return self.request(body, reply_to=addresses[number // 2 % len(addresses)])

        async with self.channel() as channel:
            await self.send(channel, make, per_second=10, did="requests")


class BadMessages(Neighbour):
    """Sends some hundreds of messages that cannot be used, some of them with headers of a whole frame."""

    async def disturb(self) -> None:
        """Send every kind of them in turn."""
        bad = self._bad()
        async with self.channel() as channel:
            await self.send(channel, lambda _: next(bad), per_second=60, did="messages")

    def _bad(self) -> Iterator[Sending]:
        good = self.body("neighbour.reply")
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
                    yield self.request(b"not json", headers={"x-note": "h" * _HEADERS_BYTES})
                case 1:
                    yield "executions", "execution.requested", self.message(good, "execution.no_such_type")
                case 2:
                    yield self.request(good, headers={"schema_version": 99})
                case 3:
                    yield self.request(good, headers={"schema_version": {"deep": [[[]]]}, "x-tries": -5})
                case _:
                    yield self.request(body)


class UnknownCancels(Neighbour):
    """Cancels some thousands of executions that never were, by id and by key."""

    async def disturb(self) -> None:
        """Publish them by the exchange, or straight to the queue."""
        kind = "execution.cancel_requested"
        exchange, routing_key = (
            ("executions", kind) if self.variant == "by the exchange" else ("", "executor.requests")
        )

        def make(number: int) -> Sending:
            unknown = (
                {"idempotency_key": f"never {self.number} {number}"}
                if number % 2
                else {"execution_id": MADE_UP_FROM + number}
            )
            return exchange, routing_key, self.message(unknown, kind)

        async with self.channel() as channel:
            await self.send(channel, make, per_second=400, did="cancels")


class UnknownEnds(Neighbour):
    """Tells ends of executions that never were.

    No account but a worker's may publish them; an exchange of one's own, bound to ours, leads round that.
    """

    async def disturb(self) -> None:
        """Publish them to the exchange."""

        def make(number: int) -> Sending:
            body = {
                "execution_id": MADE_UP_FROM + number,
                "action_id": 1,
                "action_ref": "neighbour.reply",
                "status": "completed",
                "result": None,
                "error": None,
                "attempt": 1,
                "completed_at": "2026-11-22T00:00:00Z",
            }
            return self._name, "execution.completed", self.message(body, "execution.completed")

        async with self.channel() as channel:
            exchange = await channel.declare_exchange(self._name, "fanout", auto_delete=True)
            await (await channel.get_exchange("executions", ensure=False)).bind(exchange)
            await self.send(channel, make, per_second=200, did="ends")

    async def take_back(self) -> None:
        """Delete the exchange."""
        async with self.channel() as channel:
            await channel.exchange_delete(self._name)

    @property
    def _name(self) -> str:
        return f"neighbour.ends-{self.number}"


class UndeclarablePool(Neighbour):
    """Has the queue of a pool as another type, so that nobody else can declare it.

    Unserved: a pool that no worker has. Served: workers have it, and the queue is taken from under them.
    """

    async def disturb(self) -> None:
        """Take the queue, then ask for runs of an action of that pool."""
        async with self.channel() as channel:
            queue = f"worker.{self._pool}"
            with suppress(ChannelNotFoundEntity):
                await channel.queue_delete(queue)
            await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "classic"})
            self.did["declared"] += 1
            await self._define()
            await self.send(
                channel, lambda _: self.request(self.body(self._ref)), per_second=5, did="requests"
            )

    async def take_back(self) -> None:
        """Delete the queue, so that it can be declared as it should be."""
        async with self.channel() as channel:
            await channel.queue_delete(f"worker.{self._pool}")

    async def _define(self) -> None:
        while self.variant == "unserved":
            with suppress(httpx.HTTPError):
                if (await self.ask("PUT", f"/actions/{self._ref}", {"pool": self._pool})).is_success:
                    return
            await asyncio.sleep(_AGAIN_SECONDS)

    @property
    def _pool(self) -> str:
        return "taken" if self.variant == "served" else f"stranger-{self.number}"

    @property
    def _ref(self) -> str:
        return "neighbour.taken" if self.variant == "served" else f"neighbour.stranger-{self.number}"


class RefusingDeadLetters(Neighbour):
    """Bounds the queue of the dead letters by a policy, and sends what ends there."""

    async def disturb(self) -> None:
        """Set the policy, then send more bad messages than the queue takes."""
        await asyncio.to_thread(self._set)
        self.did["policies"] += 1
        async with self.channel() as channel:
            await self.send(channel, lambda _: self.request(b"not json"), per_second=10, did="messages")

    async def take_back(self) -> None:
        """Remove the policy."""
        await asyncio.to_thread(self._unset)

    def _set(self) -> None:
        bound: dict[str, str | int] = {"max-length": _TAKES_MAX, "overflow": "reject-publish"}
        with self._broker() as broker:
            broker.set_policy(self.access.vhost, self._name, r"^executions\.dead_letters$", bound)

    def _unset(self) -> None:
        with self._broker() as broker:
            broker.delete_policy(self.access.vhost, self._name)

    def _broker(self) -> BrokerServer:
        return BrokerServer(self.access.amqp_url, self.access.management_url)

    @property
    def _name(self) -> str:
        return f"neighbour-{self.number}"


async def _refusing_queue(channel: AbstractChannel, name: str) -> AbstractQueue:
    return await channel.declare_queue(
        name,
        arguments={
            "x-max-length": _TAKES_MAX,
            "x-overflow": "reject-publish",
            "x-expires": int(10 * ASK_SECONDS * 1000),
        },
    )
