"""Submits lists: in order, many on their way at once, never more than a bound.

In: requests. Out: `Submitted` or `Rejected` for each, in order; what is refused here is not sent. Next:
`request` wraps one, `answers` asks.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from turnstile.client.answers import Answers, Asked
from turnstile.client.errors import Rejected
from turnstile.client.request import Request, request_message
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.domain.states import Status
from turnstile.common.messages import ExecutionAccepted

_CHUNK_MAX: Final = 500
_CHUNKS_UNANSWERED_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The request is in the record, and will be run (P5)."""

    execution_id: int
    """Its ticket: smaller was admitted earlier."""
    status: Status
    position: int | None
    """Place in line, from 1; None when it does not wait in line."""
    duplicate: bool
    """Its idempotency key was known: the execution is the one that was admitted under it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    requests: list[Request]
    asked: list[Asked | Rejected]

    def sent(self) -> list[Asked]:
        return [each for each in self.asked if isinstance(each, Asked)]


class Submissions:
    """Submits for one client."""

    def __init__(self, answers: Answers, *, timeout_seconds: float, parameters_bytes_max: int) -> None:
        self._answers = answers
        self._timeout_seconds = timeout_seconds
        self._parameters_bytes_max = parameters_bytes_max

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return an answer for each, in order; raises Unavailable where one has none in time."""
        unanswered: deque[_Chunk] = deque()
        results: list[Submitted | Rejected] = []
        try:
            for chunk in _chunks(requests):
                # Confirmed before the next chunk leaves: that keeps the order (P2).
                unanswered.append(await self._ask(chunk))
                if len(unanswered) == _CHUNKS_UNANSWERED_MAX:
                    results += await self._results(unanswered.popleft())
            while unanswered:
                results += await self._results(unanswered.popleft())
        finally:
            for left in unanswered:
                self._answers.forget(left.sent())
        return results

    async def _ask(self, requests: list[Request]) -> _Chunk:
        checked = [self._checked(request) for request in requests]
        messages = [each for each in checked if isinstance(each, Outgoing)]
        asked = iter(await self._answers.ask(messages, timeout_seconds=self._timeout_seconds))
        return _Chunk(
            requests=requests, asked=[each if isinstance(each, Rejected) else next(asked) for each in checked]
        )

    async def _results(self, chunk: _Chunk) -> list[Submitted | Rejected]:
        answers = iter(await self._answers.answers(chunk.sent()))
        return [
            each if isinstance(each, Rejected) else _result(request, next(answers))
            for request, each in zip(chunk.requests, chunk.asked, strict=True)
        ]

    def _checked(self, request: Request) -> Outgoing | Rejected:
        try:
            return request_message(
                request, reply_to=self._answers.queue, parameters_bytes_max=self._parameters_bytes_max
            )
        except Rejected as refused:
            return refused


def _result(request: Request, answer: ExecutionAccepted | Rejected) -> Submitted | Rejected:
    if isinstance(answer, Rejected):
        return answer
    return Submitted(
        execution_id=answer.execution_id,
        status=answer.status,
        position=answer.position,
        # Without a key only our own repeat can have been there before.
        duplicate=answer.duplicate and request.idempotency_key is not None,
    )


def _chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    rest = iter(requests)
    while chunk := list(islice(rest, _CHUNK_MAX)):
        yield chunk
