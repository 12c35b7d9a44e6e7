"""Makes one POST and decides what its response means.

In: a claimed delivery and the body of `execution.completed`. Out: a `Response`, and its `Outcome`:
delivered, tried again, or failed. Requests are signed as Standard Webhooks
(https://www.standardwebhooks.com): HMAC-SHA256 over `id.timestamp.body`, once with each secret, so that one
can replace another without a gap. Redirects are not followed, proxies of the environment are not used, and
only the beginning of an error response is read.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID

import httpx

from turnstile.common.fields import check_callback_url
from turnstile.common.retry_after import retry_after_seconds
from turnstile.executor.queue_manager.retries import RetryPolicy, retry_delay_seconds
from turnstile.executor.webhooks.ssrf_guard import AddressRefused

State = Literal["pending", "delivered", "failed"]

_ERROR_BYTES_MAX: Final = 1024
_ERROR_CHARS_MAX: Final = 500
_RETRY_AFTER_SECONDS_MAX: Final = 86_400.0
"""A receiver may request a longer wait than ours, up to a day."""
# Request Timeout, Too Many Requests: the request itself was not at fault.
_RETRYABLE_4XX: Final = {408, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The response to one POST, or its error."""

    status: int | None = None
    """The HTTP status; None where there was no response."""
    error: str | None = None
    """The error for operators; None for a 2xx."""
    retry_after_seconds: float | None = None
    is_final: bool = False
    """A retry cannot succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The next state of a delivery."""

    state: State
    delay_seconds: float = 0.0
    """Wait before the next try of a pending delivery."""


def outcome_of(response: Response, *, attempts: int, policy: RetryPolicy, spread: float) -> Outcome:
    """Decide by the response to attempt number `attempts`; `spread` is random, from -1 to 1."""
    if response.status is not None and 200 <= response.status < 300:
        return Outcome(state="delivered")
    if response.is_final or _is_refusal(response.status):
        return Outcome(state="failed")
    delay_seconds = retry_delay_seconds(policy, failures=attempts, spread=spread)
    if delay_seconds is None:
        return Outcome(state="failed")
    requested_seconds = min(response.retry_after_seconds or 0.0, _RETRY_AFTER_SECONDS_MAX)
    return Outcome(state="pending", delay_seconds=max(delay_seconds, requested_seconds))


def _is_refusal(status: int | None) -> bool:
    return status is not None and 400 <= status < 500 and status not in _RETRYABLE_4XX


def signed_headers(secrets: Sequence[bytes], *, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that identify and sign this attempt; without a secret there is no signature."""
    headers = {"webhook-id": event_id, "webhook-timestamp": str(timestamp)}
    if secrets:
        content = f"{event_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_signature(secret, content) for secret in secrets)
    return headers


def _signature(secret: bytes, content: bytes) -> str:
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


class Sender:
    """Posts through a client whose transport guards addresses; the caller owns the client."""

    def __init__(
        self, client: httpx.AsyncClient, secrets: Sequence[bytes], *, timeout_seconds: float
    ) -> None:
        self._client = client
        self._secrets = secrets
        self._timeout_seconds = timeout_seconds

    async def post(self, url: str, *, event_id: UUID, body: bytes, traceparent: str | None) -> Response:
        """Post once. Raises only TimeoutError, where the caller's deadline comes first."""
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "turnstile-webhooks/1",
            # A compressed response could be a thousand times larger when unpacked.
            "Accept-Encoding": "identity",
            **signed_headers(
                self._secrets, event_id=str(event_id), timestamp=int(now.timestamp()), body=body
            ),
            **({"traceparent": traceparent} if traceparent else {}),
        }
        try:
            # The URL may have been stored before URLs were validated.
            return await self._send(check_callback_url(url), headers, body, now)
        except AddressRefused as error:
            return Response(error=str(error), is_final=True)
        except (httpx.InvalidURL, ValueError) as error:
            return Response(error=f"callback_url: {error}"[:_ERROR_CHARS_MAX], is_final=True)
        except httpx.HTTPError as error:
            return Response(error=f"{type(error).__name__}: {str(error) or 'no response'}"[:_ERROR_CHARS_MAX])

    async def _send(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> Response:
        async with self._client.stream(
            "POST",
            url,
            content=body,
            headers=headers,
            timeout=self._timeout_seconds,
            follow_redirects=False,
        ) as response:
            if response.is_success:
                return Response(status=response.status_code)
            beginning = b""
            async for chunk in response.aiter_raw():
                beginning += chunk[: _ERROR_BYTES_MAX - len(beginning)]
                if len(beginning) >= _ERROR_BYTES_MAX:
                    break
        return Response(
            status=response.status_code,
            error=_refusal(response, beginning),
            retry_after_seconds=retry_after_seconds(response.headers.get("retry-after"), now),
        )


def _refusal(response: httpx.Response, beginning: bytes) -> str:
    detail = beginning.decode(errors="replace").replace("\0", "").strip()
    if response.is_redirect:
        detail = "redirects are not followed; set callback_url to the final URL"
    return f"{response.status_code} {response.reason_phrase}: {detail}".rstrip(": ")[:_ERROR_CHARS_MAX]
