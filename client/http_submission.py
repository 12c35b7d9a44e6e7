"""Submits over HTTP: gathers requests into lists, one `POST /executions` at a time.

In: requests. Out: `Submitted` or `Rejected` for each, in order. One list at a time keeps the order of calls
(P2). The API recognises a repeated request by its idempotency key only, so what may have been received is
repeated only with a key; what was certainly not received always is.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from turnstile.client.api import Api
from turnstile.client.errors import NotReceived, Rejected, Unavailable
from turnstile.client.requests import Request, answer_seconds, request_body, traceparent_here
from turnstile.client.schemas import Acceptance, Problem
from turnstile.client.submission import CHUNK_MAX, Submitted, chunks
from turnstile.common.batcher import Batcher

_LIST_MAX: Final = CHUNK_MAX
"""The API takes lists of up to 1000 requests and 8 MiB."""
_PAUSE_FIRST_SECONDS: Final = 0.1
_PAUSE_MAX_SECONDS: Final = 2.0
_UNKNOWN: Final = (
    "the request may have been stored: look it up before you submit it again, or give each request an "
    "idempotency_key, with which the client repeats it safely"
)

_Answer = Submitted | Rejected | Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    body: bytes
    is_keyed: bool
    traceparent: str | None
    give_up_at: float
    """In the time of the event loop."""

    def traced_body(self) -> bytes:
        """Return the body with its trace context, which is no field of the request."""
        if self.traceparent is None:
            return self.body
        return b'%s,"traceparent":"%s"}' % (self.body[:-1], self.traceparent.encode())


class HttpSubmissions:
    """The submits of one client over HTTP. `run` sends them."""

    def __init__(self, api: Api, *, timeout_seconds: float, parameters_bytes_max: int) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds
        self._parameters_bytes_max = parameters_bytes_max
        self._items: Batcher[_Item, _Answer] = Batcher(
            self._send, items_max=_LIST_MAX, size_bytes=lambda item: len(item.body)
        )

    async def run(self) -> NoReturn:
        """Send until cancelled."""
        await self._items.run()

    async def submit_all(self, requests: Iterable[Request]) -> list[Submitted | Rejected]:
        """Return an answer for each, in order; raises Unavailable if one is missing in time."""
        # One span for the call, as for the one message of a broker.
        traceparent = traceparent_here()
        results: list[Submitted | Rejected] = []
        for chunk in chunks(requests):
            results += await self._submit(chunk, traceparent)
        return results

    async def _submit(
        self, requests: Sequence[Request], traceparent: str | None
    ) -> list[Submitted | Rejected]:
        timeout_seconds = answer_seconds(requests, default=self._timeout_seconds)
        give_up_at = asyncio.get_running_loop().time() + timeout_seconds
        read = [self._item(each, traceparent, give_up_at) for each in requests]
        answers = iter(await self._items.submit_all([each for each in read if isinstance(each, _Item)]))
        results: list[Submitted | Rejected] = []
        for each in read:
            answer = each if isinstance(each, Rejected) else next(answers)
            if isinstance(answer, Unavailable):
                raise answer
            results.append(answer)
        return results

    def _item(self, request: Request, traceparent: str | None, give_up_at: float) -> _Item | Rejected:
        try:
            body = request_body(request, parameters_bytes_max=self._parameters_bytes_max)
        except Rejected as rejected:
            return rejected
        return _Item(
            body=body,
            is_keyed=request.idempotency_key is not None,
            traceparent=request.traceparent or traceparent,
            give_up_at=give_up_at,
        )

    async def _send(self, items: Sequence[_Item]) -> list[_Answer]:
        answers: dict[int, _Answer] = {}
        pending = dict(enumerate(items))
        pause_seconds = _PAUSE_FIRST_SECONDS
        while pending:
            try:
                answered = await self._answers(list(pending.values()))
            except Rejected as rejected:
                return [answers.get(index, rejected) for index in range(len(items))]
            except Unavailable as error:
                now = asyncio.get_running_loop().time() + pause_seconds
                for index, item in list(pending.items()):
                    if now > item.give_up_at or not (item.is_keyed or isinstance(error, NotReceived)):
                        answers[index] = _given_up(error, item)
                        del pending[index]
                if pending:
                    await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _PAUSE_MAX_SECONDS)
            else:
                answers.update(zip(pending, answered, strict=True))
                break
        return [answers[index] for index in range(len(items))]

    async def _answers(self, items: Sequence[_Item]) -> list[_Answer]:
        left_seconds = max(each.give_up_at for each in items) - asyncio.get_running_loop().time()
        contexts = {each.traceparent for each in items}
        # An executor of an earlier version knows the header only.
        in_header = len(contexts) == 1
        found = await self._api.submit(
            [each.body if in_header else each.traced_body() for each in items],
            traceparent=contexts.pop() if in_header else None,
            timeout_seconds=max(left_seconds, 0.1),
        )
        return [_result(each) for each in found]


def _given_up(error: Unavailable, item: _Item) -> Unavailable:
    if isinstance(error, NotReceived):
        return error
    return Unavailable(f"{error}; {_UNKNOWN}" if not item.is_keyed else str(error))


def _result(answer: Acceptance | Problem) -> Submitted | Rejected:
    return Rejected(answer.code, answer.detail) if isinstance(answer, Problem) else submitted_of(answer)


def submitted_of(answer: Acceptance) -> Submitted:
    """Return what the API answered to a submit or a retry."""
    return Submitted(
        execution_id=answer.id,
        status=answer.status,
        position=answer.position,
        duplicate=answer.duplicate,
    )
