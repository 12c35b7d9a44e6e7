"""Asks what only the leader knows, of any executor: the own leader process first, else over the broker.

In: a question. Out: its answer, or a value that says that there is none now; never an exception. The caller
then shows what the database knows (DESIGN: questions).
"""

import time
from typing import Final, TypeVar

from turnstile.executor.asking.broker_rpc import BrokerAsker
from turnstile.executor.asking.local import LocalAsker
from turnstile.executor.questions.protocol import (
    Answered,
    Question,
    Unanswered,
    check,
    pack_question,
    read_reply,
)

A = TypeVar("A")

_COUNTS_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
"""How long an asker waits: longer than any turn, shorter than a client of the API."""


class Asker:
    """Safe to share between the tasks of one loop."""

    def __init__(self, local: LocalAsker, broker: BrokerAsker) -> None:
        self._local, self._broker = local, broker

    async def counts(self) -> bytes | None:
        """Return what the leader's process of this executor has counted; None: it does not answer."""
        return await self._local.counts(_COUNTS_SECONDS)

    async def ask(self, question: Question[A], seconds: float = ANSWER_SECONDS) -> Answered[A] | Unanswered:
        """Return the answer. Raises InvalidQuestion for one that no leader answers."""
        check(question)
        data, until = pack_question(question), time.monotonic() + seconds
        reply = await self._local.ask(data, seconds) if self._local.is_connected else None
        found: Answered[A] | Unanswered | None = None if reply is None else read_reply(question, reply)
        if found is not None and not (isinstance(found, Unanswered) and found.why == "not_leading"):
            return found
        reply = await self._broker.ask(data, max(until - time.monotonic(), 0.0))
        if reply is not None:
            return read_reply(question, reply)
        return Unanswered(why="no_answer", message=f"no leader answered within {seconds:g} s")
