"""One POST: what is sent, and what becomes of odd answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest

from tests.integration.webhooks.receiver import Receiver
from turnstile.executor.webhooks.addresses import GuardedTransport
from turnstile.executor.webhooks.judgement import Answer
from turnstile.executor.webhooks.post import Poster
from turnstile.executor.webhooks.signature import signed_headers

EVENT = UUID(int=7)
SECRET = b"sixteen or more bytes"


@asynccontextmanager
async def posting(*, allow_private: bool = True, timeout_seconds: float = 5.0) -> AsyncIterator[Poster]:
    transport = GuardedTransport(allow_private=allow_private)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        yield Poster(client, [SECRET], timeout_seconds=timeout_seconds)


async def post(url: str, *, allow_private: bool = True, timeout_seconds: float = 5.0) -> Answer:
    async with posting(allow_private=allow_private, timeout_seconds=timeout_seconds) as poster:
        return await poster.post(url, event_id=EVENT, body=b'{"a": 1}', traceparent="00-1-2-01")


async def test_the_body_is_sent_as_it_is_and_signed(receiver: Receiver) -> None:
    assert await post(f"{receiver.url}?tenant=7") == Answer(status=200)
    (got,) = receiver.received
    assert (got.path, got.body) == ("/hook?tenant=7", b'{"a": 1}')
    assert (got.headers["content-type"], got.headers["traceparent"]) == ("application/json", "00-1-2-01")
    sent_at = int(got.headers["webhook-timestamp"])
    assert abs(sent_at - datetime.now(UTC).timestamp()) < 60
    expected = signed_headers([SECRET], event_id=str(EVENT), timestamp=sent_at, body=got.body)
    # The receiver's header names and values are in lower case.
    assert {name: value.lower() for name, value in expected.items()}.items() <= got.headers.items()


async def test_a_redirect_is_not_followed_and_says_so(receiver: Receiver) -> None:
    receiver.says("302 Found", b"", f"Location: {receiver.url}/elsewhere")
    answered = await post(receiver.url)
    assert (answered.status, len(receiver.received)) == (302, 1)
    assert "redirects are not followed" in (answered.error or "")


async def test_of_a_long_answer_only_a_beginning_is_kept(receiver: Receiver) -> None:
    receiver.says("500 Broken", b"\xffno\0" + b"x" * 10_000_000)
    answered = await post(receiver.url)
    assert answered.status == 500
    assert len(answered.error or "") <= 500
    assert "\0" not in (answered.error or "")


async def test_retry_after_is_honoured(receiver: Receiver) -> None:
    receiver.says("429 Slow down", b"", "Retry-After: 17")
    assert (await post(receiver.url)).retry_after_seconds == 17


async def test_what_does_not_answer_in_time_is_no_answer(receiver: Receiver) -> None:
    receiver.answers = [None]
    answered = await post(receiver.url, timeout_seconds=0.2)
    assert (answered.status, answered.is_final) == (None, False)
    assert "Timeout" in (answered.error or "")


async def test_what_is_not_http_is_no_answer(receiver: Receiver) -> None:
    receiver.answers = [b"SSH-2.0-OpenSSH_9.2\r\n"]
    answered = await post(receiver.url)
    assert (answered.status, answered.is_final) == (None, False)


async def test_a_private_address_is_final_and_names_the_setting(receiver: Receiver) -> None:
    answered = await post(receiver.url, allow_private=False)
    assert (answered.status, answered.is_final, receiver.received) == (None, True, [])
    assert "TURNSTILE_WEBHOOK_ALLOW_PRIVATE" in (answered.error or "")


@pytest.mark.parametrize("url", ["ftp://example.org/", "http://", "http://[::1", "http://a:b:c/", "nowhere"])
async def test_a_url_from_before_urls_were_checked_is_final(url: str) -> None:
    answered = await post(url)
    assert (answered.status, answered.is_final) == (None, True)
    assert answered.error


async def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert (await asyncio.wait_for(post(receiver.url), 10)).status == 200
