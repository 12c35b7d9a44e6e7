"""Publisher confirms: which answer of the broker belongs to which published message.

In: batches of messages in the order in which they were written, and the broker's acks, nacks and returns.
Out: one future per batch, with one `Publication` per message. Keeps its part of P4 and P5: only what the
broker confirmed counts as published, and a returned message never counts as delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from turnstile.common.broker.errors import ChannelLost
from turnstile.common.broker.message import Outgoing, Publication


class Batch:
    """The messages of one write, and the answers so far."""

    __slots__ = ("done", "first_tag", "messages", "outcomes", "returned", "settled_below", "unsettled")

    def __init__(self, first_tag: int, messages: Sequence[Outgoing]) -> None:
        self.first_tag = first_tag
        self.messages = messages
        self.outcomes: list[Publication | None] = [None] * len(messages)
        self.unsettled = len(messages)
        self.settled_below = 0
        self.returned: set[int] = set()
        self.done: asyncio.Future[list[Publication]] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, outcome: Publication) -> None:
        """Note the answer to one message."""
        if self.outcomes[index] is None and self.unsettled:
            self.outcomes[index] = Publication.RETURNED if index in self.returned else outcome
            self.unsettled -= 1
            if not self.unsettled and not self.done.done():
                self.done.set_result([each for each in self.outcomes if each is not None])

    def settle_upto(self, index: int, outcome: Publication) -> None:
        """Note one answer to all messages up to this one."""
        if index + 1 == self.unsettled == len(self.messages) and not self.returned:
            # The usual case: one answer to all of them.
            self.outcomes = [outcome] * self.unsettled
            self.unsettled = 0
            if not self.done.done():
                self.done.set_result([outcome] * len(self.messages))
        else:
            for each in range(self.settled_below, index + 1):
                self.settle(each, outcome)
        self.settled_below = max(self.settled_below, index + 1)

    def give_up(self) -> None:
        """Await no further answer: `outcomes` stays None where there is none yet."""
        self.unsettled = 0
        self.done.cancel()


class Confirms:
    """The unconfirmed batches of one channel, which numbers its publishes from 1."""

    def __init__(self) -> None:
        self._next_tag = 1
        self._batches: deque[Batch] = deque()
        self.on_unconfirmed_return: Callable[[str], None] | None = None
        """Called with the id of each returned message that no confirmation is awaited for."""

    def add(self, messages: Sequence[Outgoing]) -> Batch:
        """Assign tags to the messages that are written next; its future holds one answer each, in order."""
        batch = Batch(self._next_tag, messages)
        self._next_tag += len(messages)
        self._batches.append(batch)
        return batch

    def settle(self, tag: int, outcome: Publication, *, multiple: bool) -> None:
        """Note the answer to one tag, or to all tags up to it."""
        for batch in self._batches:
            if batch.first_tag > tag:
                break
            index = tag - batch.first_tag
            last = len(batch.messages) - 1
            if multiple:
                batch.settle_upto(min(index, last), outcome)
            elif index <= last:
                batch.settle(index, outcome)
        while self._batches and not self._batches[0].unsettled:
            self._batches.popleft()

    def note_return(self, message_id: str | None, exchange: str, routing_key: str) -> None:
        """Note that a message was returned; its confirmation follows on the same channel.

        A return carries no tag: it is matched to the first unsettled message of this id and address.
        """
        key = (message_id, exchange, routing_key)
        for batch in self._batches:
            for index in range(batch.settled_below, len(batch.messages)):
                message = batch.messages[index]
                if (
                    (message.message_id, message.exchange, message.routing_key) == key
                    and batch.outcomes[index] is None
                    and index not in batch.returned
                ):
                    batch.returned.add(index)
                    return
        if self.on_unconfirmed_return is not None and message_id is not None:
            self.on_unconfirmed_return(message_id)

    def fail(self, reason: str) -> None:
        """Raise ChannelLost in every batch that has no answer yet."""
        while self._batches:
            batch = self._batches.popleft()
            if not batch.done.done():
                batch.done.set_exception(ChannelLost(reason))
                # A publisher that timed out does not await its future any more: mark it as retrieved.
                batch.done.exception()
