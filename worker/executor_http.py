"""Asks any executor over HTTP whether something of this worker may be reclaimed: the port `Executors`.

In: `TURNSTILE_API_URL`, and a token where the API wants one. Out: for how long nothing is reclaimed, which
the leader promises while it has no broker itself. So an outage of the broker costs no running work (P16).
"""

import math
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from turnstile.common.domain.errors import Unavailable

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS: Final = 2.0
_PROMISE_SECONDS_MAX: Final = 3600.0


class ExecutorHttp:
    """The executors behind one URL; create and close it in the loop that uses it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client: httpx.AsyncClient | None = None

    async def no_reclaim_seconds(self, worker_id: str) -> float:
        """Return for how long nothing is reclaimed, from the sending of this question. Raises Unavailable."""
        # Imported here: it takes a fifth of a worker's start, and is needed in an outage only.
        import httpx  # noqa: PLC0415

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, headers=self._headers)
        url = f"{self._url}/api/v1/workers/{quote(worker_id, safe='')}/no-reclaim"
        try:
            response = await self._client.post(url)
            response.raise_for_status()
            seconds = float(response.json()["seconds"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError) as error:
            raise Unavailable(f"POST {url}: {error}") from error
        if not math.isfinite(seconds):
            raise Unavailable(f"POST {url}: seconds: {seconds} is no duration")
        return min(seconds, _PROMISE_SECONDS_MAX)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
