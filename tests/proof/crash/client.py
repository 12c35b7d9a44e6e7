"""Whoever asks: one submitter over AMQP, one over HTTP, and the log of what they sent (P5's witness).

In: bodies. Out: `Submitted`s. Each request bears a mark in its metadata, which means nothing to the
services. Those over HTTP have an idempotency key: an answer that did not come is asked for again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tests.proof.history.recording import Submitted
from tests.support.traffic import cancel_request, request
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import DIED_AT_HEADER, ERROR_CODE_HEADER, ORIGINAL_KEY_HEADER

Body = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Client:
    """Sends, remembers, and sends again what got no answer."""

    publisher: Publisher
    http: httpx.AsyncClient
    submitted: list[Submitted] = field(default_factory=list)
    _keys_to_cancel: list[str] = field(default_factory=list)
    _unanswered: list[tuple[int, Body]] = field(default_factory=list)

    async def publish(self, *bodies: Body) -> str:
        """Request over AMQP, in this order, confirmed; returns the mark of the last."""
        await self._confirmed([request(self._marked("amqp", body, confirmed=True)) for body in bodies])
        return self.submitted[-1].mark

    async def bury(self, body: Body) -> None:
        """Leave a request among the dead letters, as if it had been refused for a reason that has gone."""
        message = request(self._marked("buried", body, confirmed=True))
        died = {
            ERROR_CODE_HEADER: str(Code.UNAVAILABLE),
            ORIGINAL_KEY_HEADER: message.routing_key,
            DIED_AT_HEADER: datetime.now(UTC).isoformat(),
        }
        await self._confirmed(
            [replace(message, exchange=DEAD_LETTER_EXCHANGE, headers={**(message.headers or {}), **died})]
        )

    async def replay_dead_letters(self, url: str) -> None:
        """Have all dead letters sent again."""
        answer = await self.http.post(f"{url}/api/v1/dead-letters/replay", json={"all": True})
        assert answer.status_code == httpx.codes.OK, answer.text

    async def publish_cancels(self, *keys: str) -> None:
        """Ask for the end of what these idempotency keys name."""
        await self._confirmed([cancel_request({"idempotency_key": key}) for key in keys])

    async def publish_to_cancel(self, ref: str, **fields: object) -> str:
        """Request over AMQP what nobody will end; returns its mark."""
        self._keys_to_cancel.append(key := f"to cancel {len(self.submitted)}")
        return await self.publish({"action_ref": ref, "idempotency_key": key, **fields})

    async def post_to_cancel(self, url: str, body: Body) -> int | None:
        """Request over HTTP what nobody will end; returns its id, if there was an answer."""
        self._keys_to_cancel.append(f"http {len(self.submitted)}")
        await self.post(url, body)
        return self.submitted[-1].execution_id

    async def cancel_what_is_left(self) -> None:
        """Ask for the end of all that nobody will end otherwise."""
        keys, self._keys_to_cancel = self._keys_to_cancel, []
        await self.publish_cancels(*keys)

    async def post(self, url: str, body: Body) -> None:
        """Request over HTTP; where there is no answer it is left for `post_again`."""
        key = f"http {len(self.submitted)}"
        marked = self._marked("http", {**body, "idempotency_key": key}, confirmed=False)
        self._unanswered.append((len(self.submitted) - 1, marked))
        await self.post_again(url)

    async def post_again(self, url: str) -> None:
        """Send in order what got no answer yet, until there is none again."""
        while self._unanswered:
            place, body = self._unanswered[0]
            try:
                answer = await self.http.post(f"{url}/api/v1/executions", json=body)
            except httpx.HTTPError:
                return
            assert answer.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), answer.text
            self.submitted[place] = replace(
                self.submitted[place], confirmed=True, execution_id=answer.json()["id"]
            )
            del self._unanswered[0]

    async def _confirmed(self, messages: Sequence[Any]) -> None:
        outcomes = await self.publisher.publish(messages)
        assert all(outcome is Publication.CONFIRMED for outcome in outcomes)

    def _marked(self, submitter: str, body: Body, *, confirmed: bool) -> Body:
        number = len(self.submitted)
        mark = f"{submitter} {number}"
        self.submitted.append(Submitted(submitter=submitter, number=number, mark=mark, confirmed=confirmed))
        return {**body, "metadata": {"mark": mark}}


async def send_wave(client: Client, url: str) -> None:
    """Ask for a little of everything; one of them is cancelled at once."""
    key = f"key {len(client.submitted)}"
    await client.publish(
        {"action_ref": "crash.one"},
        {"action_ref": "crash.one", "idempotency_key": key},
        {"action_ref": "crash.two"},
        {"action_ref": "crash.free"},
        {"action_ref": "crash.keyed", "parameters": {"customer": "first"}},
        {"action_ref": "crash.keyed", "parameters": {"customer": "second"}, "idempotency_key": f"{key} b"},
        {"action_ref": "crash.retried"},
        {"action_ref": "crash.free", "run_at": (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()},
    )
    await client.publish_cancels(key)
    await client.post(url, {"action_ref": "crash.two"})
