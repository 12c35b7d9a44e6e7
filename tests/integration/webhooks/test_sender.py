"""One POST, its signature, and what its response means."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest

from tests.integration.webhooks.receiver import Receiver
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.settings import read_webhook_secrets
from turnstile.executor.webhooks.sender import Outcome, Response, Sender, outcome_of, signed_headers
from turnstile.executor.webhooks.ssrf_guard import GuardedTransport

EVENT = UUID(int=7)
SECRET = b"sixteen or more bytes"


@asynccontextmanager
async def posting(*, allow_private: bool = True, timeout_seconds: float = 5.0) -> AsyncIterator[Sender]:
    transport = GuardedTransport(allow_private=allow_private)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        yield Sender(client, [SECRET], timeout_seconds=timeout_seconds)


async def post(url: str, *, allow_private: bool = True, timeout_seconds: float = 5.0) -> Response:
    async with posting(allow_private=allow_private, timeout_seconds=timeout_seconds) as poster:
        return await poster.post(url, event_id=EVENT, body=b'{"a": 1}', traceparent="00-1-2-01")


async def test_the_body_is_sent_as_it_is_and_signed(receiver: Receiver) -> None:
    assert await post(f"{receiver.url}?tenant=7") == Response(status=200)
    (got,) = receiver.received
    assert (got.path, got.body) == ("/hook?tenant=7", b'{"a": 1}')
    assert (got.headers["content-type"], got.headers["traceparent"]) == ("application/json", "00-1-2-01")
    sent_at = int(got.headers["webhook-timestamp"])
    assert abs(sent_at - datetime.now(UTC).timestamp()) < 60
    expected = signed_headers([SECRET], event_id=str(EVENT), timestamp=sent_at, body=got.body)
    # The receiver's header names and values are in lower case.
    assert {name: value.lower() for name, value in expected.items()}.items() <= got.headers.items()


async def test_a_redirect_is_an_error_and_not_followed(receiver: Receiver) -> None:
    receiver.says("302 Found", b"", f"Location: {receiver.url}/elsewhere")
    answered = await post(receiver.url)
    assert (answered.status, len(receiver.received)) == (302, 1)
    assert "redirects are not followed" in (answered.error or "")


async def test_a_long_response_is_truncated(receiver: Receiver) -> None:
    receiver.says("500 Broken", b"\xffno\0" + b"x" * 10_000_000)
    answered = await post(receiver.url)
    assert answered.status == 500
    assert len(answered.error or "") <= 500
    assert "\0" not in (answered.error or "")


async def test_retry_after_is_honoured(receiver: Receiver) -> None:
    receiver.says("429 Slow down", b"", "Retry-After: 17")
    assert (await post(receiver.url)).retry_after_seconds == 17


async def test_a_timeout_is_no_response(receiver: Receiver) -> None:
    receiver.answers = [None]
    answered = await post(receiver.url, timeout_seconds=0.2)
    assert (answered.status, answered.is_final) == (None, False)
    assert "Timeout" in (answered.error or "")


async def test_a_response_that_is_not_http_is_no_response(receiver: Receiver) -> None:
    receiver.answers = [b"SSH-2.0-OpenSSH_9.2\r\n"]
    answered = await post(receiver.url)
    assert (answered.status, answered.is_final) == (None, False)


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


POLICY = RetryPolicy(max_attempts=4, delay_seconds=5.0, max_delay_seconds=12.0, jitter=0.2)


def outcome(answer: Response, attempts: int = 1, spread: float = 0.0) -> Outcome:
    return outcome_of(answer, attempts=attempts, policy=POLICY, spread=spread)


def test_a_2xx_is_delivered_a_4xx_is_final_and_anything_else_is_tried_again() -> None:
    again = (None, 100, 301, 302, 408, 429, 500, 502, 503, 504, 599)
    for statuses, state in (
        ((200, 201, 204, 299), "delivered"),
        ((400, 401, 404, 410, 422, 425, 499), "failed"),
        (again, "pending"),
    ):
        assert [status for status in statuses if outcome(Response(status=status)).state != state] == []
    assert outcome(Response(error="refused", is_final=True)).state == "failed"
    assert {outcome(Response(status=status)).delay_seconds for status in again} == {5.0}


def test_the_waits_double_up_to_the_longest_and_are_spread() -> None:
    down = Response(status=503)
    assert [outcome(down, attempts).delay_seconds for attempts in (1, 2)] == [5.0, 10.0]
    assert outcome(down, attempts=3, spread=1).delay_seconds == 12.0
    assert (outcome(down, spread=-1).delay_seconds, outcome(down, spread=1).delay_seconds) == (4.0, 6.0)


def test_the_last_attempt_fails() -> None:
    assert outcome(Response(status=503), attempts=4).state == "failed"
    # Replicas that died after a POST have counted too: the one that notes it decides.
    assert outcome(Response(status=503), attempts=9).state == "failed"
    assert outcome(Response(status=200), attempts=9).state == "delivered"


def test_retry_after_lengthens_the_wait_up_to_a_day() -> None:
    assert outcome(Response(status=429, retry_after_seconds=60.0)).delay_seconds == 60.0
    assert outcome(Response(status=429, retry_after_seconds=1.0)).delay_seconds == 5.0
    assert outcome(Response(status=503, retry_after_seconds=1e9)).delay_seconds == 86_400.0


# The example of https://www.standardwebhooks.com.
EXAMPLE_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXAMPLE_EVENT = "msg_p5jXN8AQM9LWM0D4loKWxJek"
EXAMPLE_BODY = b'{"test": 2432232314}'
EXAMPLE_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(secrets: str, *, body: bytes = EXAMPLE_BODY) -> dict[str, str]:
    return signed_headers(
        read_webhook_secrets(secrets), event_id=EXAMPLE_EVENT, timestamp=1614265330, body=body
    )


def test_the_signature_is_that_of_the_standard() -> None:
    assert headers(EXAMPLE_SECRET) == {
        "webhook-id": EXAMPLE_EVENT,
        "webhook-timestamp": "1614265330",
        "webhook-signature": EXAMPLE_SIGNATURE,
    }
    assert headers(EXAMPLE_SECRET, body=EXAMPLE_BODY + b" ")["webhook-signature"] != EXAMPLE_SIGNATURE
    # Without a secret nothing is signed.
    assert set(headers("")) == {"webhook-id", "webhook-timestamp"}


def test_while_secrets_are_changed_each_of_them_signs() -> None:
    old, new = EXAMPLE_SECRET, "a-secret-in-plain-text"
    assert headers(f"{new}, {old}")["webhook-signature"].split() == [
        headers(new)["webhook-signature"],
        EXAMPLE_SIGNATURE,
    ]


@pytest.mark.parametrize(
    "secret", ["short", "whsec_", "whsec_not base64!", "whsec_c2hvcnQ=", f"{EXAMPLE_SECRET},short"]
)
def test_a_weak_or_broken_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="openssl rand -base64 32") as refused:
        read_webhook_secrets(secret)
    assert "c2hvcnQ" not in str(refused.value)
    assert "not base64" not in str(refused.value)
