"""Asks any executor over HTTP whether something of this worker may be reclaimed: the port `Executors`.

In: `TURNSTILE_API_URL`, and token and certificate authority where the API wants them. Out: for how long
nothing is reclaimed, which the leader promises while it has no broker itself. So an outage of the broker
costs no running work (P16).
"""

import math
import ssl
from typing import Final
from urllib.parse import quote, urlsplit

from turnstile.common.domain.errors import Unavailable
from turnstile.common.urls import is_loopback

_TIMEOUT_SECONDS: Final = 2.0
_PROMISE_SECONDS_MAX: Final = 3600.0


class ExecutorHttp:
    """The executors behind one URL; use and close it in one loop."""

    def __init__(self, url: str, token: str | None = None, ca_file: str | None = None) -> None:
        """Raise ValueError for an invalid proxy setting."""
        # Imported here, before an outage needs it: it takes a fifth of the start of a worker without a URL.
        import httpx  # noqa: PLC0415

        self._url = url.rstrip("/")
        self._errors = (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError)
        self._client = httpx.AsyncClient(
            timeout=_TIMEOUT_SECONDS,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
            # HTTP_PROXY does not apply to loopback.
            trust_env=not is_loopback(urlsplit(url).hostname or ""),
        )

    async def no_reclaim_seconds(self, worker_id: str) -> float:
        """Return for how long nothing is reclaimed, from the sending of this question. Raises Unavailable."""
        url = f"{self._url}/api/v1/workers/{quote(worker_id, safe='')}/no-reclaim"
        try:
            response = await self._client.post(url)
            response.raise_for_status()
            seconds = float(response.json()["seconds"])
        except self._errors as error:
            raise Unavailable(f"POST {url}: {str(error) or type(error).__name__}") from error
        if not math.isfinite(seconds):
            raise Unavailable(f"POST {url}: seconds: {seconds} is no duration")
        return min(seconds, _PROMISE_SECONDS_MAX)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
