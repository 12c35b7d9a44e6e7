"""Makes one POST: the body of `execution.completed`, signed, to the URL that the execution named.

In: a claimed delivery and its body. Out: an `Answer`, whatever happens. Redirects are not followed, proxies
of the environment are not used, and of an answer that is no success only a beginning is read.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import httpx

from turnstile.common.callback_url import check_callback_url
from turnstile.common.retry_after import retry_after_seconds
from turnstile.executor.webhooks.addresses import AddressRefused
from turnstile.executor.webhooks.judgement import Answer
from turnstile.executor.webhooks.signature import signed_headers

logger = logging.getLogger(__name__)

_ERROR_BYTES_MAX: Final = 1024
_ERROR_CHARS_MAX: Final = 500


class Poster:
    """Posts through a client whose transport guards addresses; the client stays the caller's."""

    def __init__(
        self, client: httpx.AsyncClient, secrets: Sequence[bytes], *, timeout_seconds: float
    ) -> None:
        self._client = client
        self._secrets = secrets
        self._timeout_seconds = timeout_seconds

    async def post(self, url: str, *, event_id: UUID, body: bytes, traceparent: str | None) -> Answer:
        """Post once. Raises nothing but TimeoutError where the caller's own deadline comes first."""
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "turnstile-webhooks/1",
            # A compressed answer could be a thousand times the bound when unpacked.
            "Accept-Encoding": "identity",
            **signed_headers(
                self._secrets, event_id=str(event_id), timestamp=int(now.timestamp()), body=body
            ),
            **({"traceparent": traceparent} if traceparent else {}),
        }
        try:
            # It may have been stored before URLs were checked.
            return await self._answered(check_callback_url(url), headers, body, now)
        except AddressRefused as error:
            return Answer(error=str(error), is_final=True)
        except (httpx.InvalidURL, ValueError) as error:
            return Answer(error=f"callback_url: {error}"[:_ERROR_CHARS_MAX], is_final=True)
        except httpx.HTTPError as error:
            return Answer(error=f"{type(error).__name__}: {str(error) or 'no answer'}"[:_ERROR_CHARS_MAX])

    async def _answered(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> Answer:
        async with self._client.stream(
            "POST",
            url,
            content=body,
            headers=headers,
            timeout=self._timeout_seconds,
            follow_redirects=False,
        ) as response:
            if response.is_success:
                return Answer(status=response.status_code)
            beginning = b""
            async for chunk in response.aiter_raw():
                beginning += chunk[: _ERROR_BYTES_MAX - len(beginning)]
                if len(beginning) >= _ERROR_BYTES_MAX:
                    break
        return Answer(
            status=response.status_code,
            error=_refusal(response, beginning),
            retry_after_seconds=retry_after_seconds(response.headers.get("retry-after"), now),
        )


def _refusal(response: httpx.Response, beginning: bytes) -> str:
    said = beginning.decode(errors="replace").replace("\0", "").strip()
    if response.is_redirect:
        said = "redirects are not followed; let callback_url name the place itself"
    return f"{response.status_code} {response.reason_phrase}: {said}".rstrip(": ")[:_ERROR_CHARS_MAX]
