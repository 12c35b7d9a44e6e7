"""Publishes on a separate connection: in bulk with confirms, or best effort without.

In: batches of `Outgoing`. Out: one `Publication` each, in order, or BrokerUnavailable where the outcome is
unknown. Keeps P4 and P5: a caller acknowledges a delivery only after the broker confirmed the messages that
follow from it. A batch repeated after BrokerUnavailable may arrive twice; receivers are idempotent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.confirms import Batch
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Declare, Link
from turnstile.common.broker.errors import (
    BLOCKED,
    BrokerUnavailable,
    ChannelLost,
    NotConfirmed,
    NotSent,
    answered,
)
from turnstile.common.broker.message import Outgoing, Publication

_CHUNK_MESSAGES_MAX = 500
_CHUNK_BYTES_MAX = 1 << 20
_CHUNKS_UNCONFIRMED_MAX = 4
_ANNOUNCE_BUFFER_BYTES_MAX = 1 << 20
_UNREAD_BYTES_MAX = 32 << 20
"""Of what the network has not accepted: repeating a publish to a broker that hangs fills no memory."""
_ROUTED_SECONDS = 0.5
"""How long the broker may take to answer a message that leads to no queue."""
# A name that no client may declare.
TO_NOWHERE = Outgoing(
    exchange="", routing_key="amq.turnstile.nowhere", body=b"", type="", message_id="", persistent=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    link: Link
    confirmed: BulkChannel
    advisory: BulkChannel


class Publisher:
    """Publishes for one service process. `run` keeps it connected; all else may be called at any time."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        declare: Declare | None = None,
        timeouts: BrokerTimeouts | None = None,
    ) -> None:
        """`declare` is run on each connection, before the first message."""
        self._timeouts = timeouts or BrokerTimeouts()
        self._connection = BrokerConnection(url, name=name, timeouts=self._timeouts)
        self._declare = declare
        self._session: _Session | None = None
        self._has_session = asyncio.Event()
        self.announcements_dropped = 0
        self.on_announcement_returned: Callable[[str], None] = lambda _: None
        """Called with the id of each mandatory announcement that no queue took."""

    @property
    def connected(self) -> bool:
        """Whether messages can be published, unless `blocked`."""
        return self._connection.connected

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no publishes for now (memory or disk alarm)."""
        return self._connection.blocked

    @property
    def last_error(self) -> str | None:
        """Why there is no connection, or None."""
        return self._connection.last_error

    async def run(self) -> NoReturn:
        """Stay connected until cancelled."""
        await self._connection.run(self._serve)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Publication]:
        """Publish all and wait for the broker's answer to each; no time limit applies while answers arrive.

        Raises NotSent when there is no usable connection in time, BrokerUnavailable when it broke before the
        last answer, NotConfirmed when answers stopped (any message may have arrived): repeat the batch.
        Raises ValueError for a message that AMQP cannot carry.
        """
        if not messages:
            return []
        session = await self._usable_session()
        try:
            return await _send(session.confirmed, messages, self._timeouts.confirm_seconds)
        except BrokerUnavailable as error:
            # No answers although there is no alarm: do not use this connection again.
            if session.link.is_open and not session.link.blocked and session.confirmed.usable:
                session.link.abort()
                raise NotConfirmed(str(error)) from error
            raise

    async def publish_each(self, messages: Sequence[Outgoing], *, seconds: float) -> list[Publication | None]:
        """Publish, and return the answer to each; None where a queue keeps its answer longer than `seconds`.

        Then the broker has routed every message: it has answered one that followed them. So a queue that
        never confirms delays the others for `seconds` only. Raises as `publish` does: NotConfirmed where
        the whole connection is silent (the broker stops it behind a queue that takes nothing more).
        """
        session = await self._usable_session()
        if session.link.write_buffer_bytes > _UNREAD_BYTES_MAX:
            raise NotSent("the broker does not read what is sent to it")
        if not messages:
            return []
        batches: list[Batch] = []
        try:
            batches.extend(_written(session.confirmed, chunk) for chunk in _chunks(messages))
            _, unanswered = await asyncio.wait([batch.done for batch in batches], timeout=seconds)
            if unanswered:
                await self._see_routed(session, seconds)
            for batch in batches:
                if batch.done.done() and (error := batch.done.exception()) is not None:
                    raise BrokerUnavailable(str(error)) from error
            return [outcome for batch in batches for outcome in batch.outcomes]
        finally:
            for batch in batches:
                if not batch.done.done():
                    batch.give_up()

    async def _see_routed(self, session: _Session, seconds: float) -> None:
        """Return once the broker has processed all that was published; else abort the connection."""
        try:
            await answered(_written(session.confirmed, [TO_NOWHERE]).done, max(seconds, _ROUTED_SECONDS))
        except BrokerUnavailable as error:
            if session.link.is_open and not session.link.blocked and session.confirmed.usable:
                session.link.abort()
                raise NotConfirmed(str(error)) from error
            raise

    def announce(self, messages: Sequence[Outgoing]) -> None:
        """Send advisory messages if that is possible without waiting; else drop and count them."""
        assert not any(message.persistent for message in messages)
        session = self._session
        if (
            session is None
            or session.link.blocked
            or session.link.write_buffer_bytes > _ANNOUNCE_BUFFER_BYTES_MAX
        ):
            self.announcements_dropped += len(messages)
            return
        try:
            session.advisory.publish_unconfirmed(messages)
        except ChannelLost:
            self.announcements_dropped += len(messages)

    async def declare(self, declare: Declare) -> None:
        """Run further declarations now, on a separate channel.

        Raises DeclarationRefused, BrokerUnavailable.
        """
        session = await self._usable_session()
        await session.link.declare(declare)

    async def restore(self) -> None:
        """Repeat the declarations of each connection, after a deletion. Raises BrokerUnavailable."""
        if self._declare is not None:
            await self.declare(self._declare)

    async def _serve(self, link: Link) -> None:
        if self._declare is not None:
            await link.declare(self._declare)
        session = _Session(
            link=link, confirmed=await link.open_channel(confirms=True), advisory=await link.open_channel()
        )
        session.advisory.confirms.on_unconfirmed_return = self._note_return
        self._session = session
        self._has_session.set()
        link.serving()
        try:
            await link.until_lost(session.confirmed, session.advisory)
        finally:
            self._session = None
            self._has_session.clear()

    def _note_return(self, message_id: str) -> None:
        self.on_announcement_returned(message_id)

    async def _usable_session(self) -> _Session:
        """Wait for a connection that takes publishes; during an alarm written messages would only pile up."""
        usable = self._session
        if usable is not None and usable.confirmed.usable and not usable.link.blocked:
            return usable
        try:
            async with asyncio.timeout(self._timeouts.wait_seconds):
                while True:
                    await self._has_session.wait()
                    session = self._session
                    if session is None or not session.confirmed.usable:
                        # The connection just broke: give `_serve` time to notice.
                        await asyncio.sleep(0.01)
                    elif session.link.blocked:
                        await session.link.unblocked(self._timeouts.wait_seconds)
                    else:
                        return session
        except TimeoutError as error:
            reason = BLOCKED if self.blocked else self.last_error or "not connected"
            raise NotSent(f"no usable connection to the broker: {reason}") from error


async def _send(
    channel: BulkChannel, messages: Sequence[Outgoing], confirm_seconds: float
) -> list[Publication]:
    unconfirmed: deque[asyncio.Future[list[Publication]]] = deque()
    outcomes: list[Publication] = []
    for chunk in _chunks(messages):
        if len(unconfirmed) == _CHUNKS_UNCONFIRMED_MAX:
            outcomes += await answered(unconfirmed.popleft(), confirm_seconds)
        unconfirmed.append(_written(channel, chunk).done)
    for answers in unconfirmed:
        outcomes += await answered(answers, confirm_seconds)
    return outcomes


def _written(channel: BulkChannel, chunk: Sequence[Outgoing]) -> Batch:
    try:
        return channel.publish_batch(chunk)
    except ChannelLost as error:
        raise BrokerUnavailable(str(error)) from error


def _chunks(messages: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
    """Cut a batch into writes that neither block the event loop for long nor fill the memory."""
    start = chunk_bytes = 0
    for index, message in enumerate(messages):
        size_bytes = len(message.body)
        if index - start == _CHUNK_MESSAGES_MAX or (
            index > start and chunk_bytes + size_bytes > _CHUNK_BYTES_MAX
        ):
            yield messages[start:index]
            start, chunk_bytes = index, 0
        chunk_bytes += size_bytes
    yield messages[start:]
