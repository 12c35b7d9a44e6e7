"""The HTTP API of an installation, as the harness uses it.

In: the URLs of its executors. Out: plain JSON values, since a model for each of a million rows would cost
more than reading them. A call that no executor answers goes to the next, and again, for as long as a restart
of anything takes; all calls may be repeated. Next: `drive`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
from pydantic_core import from_json

from turnstile.common.domain.errors import Code, TurnstileError
from turnstile.stress.installation import Installation

PATIENCE_SECONDS: Final = 60.0
_TRY_SECONDS: Final = 5.0
_PAGE_TRY_SECONDS: Final = 20.0
_AUDIT_TRY_SECONDS: Final = 40.0
_PAUSE_FIRST_SECONDS: Final = 0.05
_PAUSE_MAX_SECONDS: Final = 1.0
_PAGE: Final = 1000
_CALLS_MAX: Final = 4

Json = dict[str, Any]


class Unreachable(TurnstileError):
    """The installation does not answer as one does; the message names the address and what to do."""


class Api:
    """Calls over HTTP while the `async with` block lasts. Safe to share between the tasks of one loop."""

    def __init__(self, installation: Installation, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        token = installation.api_token
        self._urls = installation.http_urls
        self._patience_seconds = patience_seconds
        self._preferred = 0
        self._http = httpx.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"},
            timeout=_TRY_SECONDS,
            # Proxies of the environment are for other machines, not for this one.
            trust_env=not installation.is_on_this_host,
        )
        # An executor reads for few at once; the library's own line costs more with each one who stands in it.
        self._turns = asyncio.Semaphore(_CALLS_MAX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def put_action(self, ref: str, fields: Mapping[str, object]) -> None:
        """Store a whole definition: fields that are left out get their defaults."""
        await self._call("PUT", f"/actions/{quote(ref, safe='')}", body=fields)

    async def change_action(self, ref: str, fields: Mapping[str, object]) -> None:
        """Change some fields of a definition."""
        await self._call("PATCH", f"/actions/{quote(ref, safe='')}", body=fields)

    async def action(self, ref: str) -> Json | None:
        """Return a definition, or None where there is no such action."""
        return await self._call("GET", f"/actions/{quote(ref, safe='')}", missing_ok=True)

    async def resume(self, ref: str) -> None:
        """Let what waits for a paused action be granted."""
        await self._call("POST", f"/actions/{quote(ref, safe='')}/resume")

    async def queue_stats(self, ref: str) -> Json:
        """Return how the queues of an action stand."""
        return await self._get(f"/actions/{quote(ref, safe='')}/queue-stats")

    async def live_workers(self) -> list[Json]:
        """Return the workers that take work."""
        found = await self._get("/workers", {"state": "live", "limit": _PAGE})
        return list(found["items"])

    async def newest_id(self) -> int:
        """Return the id of the newest execution; 0: there is none."""
        found = await self._get("/executions", {"limit": 1})
        return int(found["items"][0]["id"]) if found["items"] else 0

    async def executions(self, *, after_id: int) -> AsyncIterator[list[Json]]:
        """Yield all executions with a later id, page by page, the newest first."""
        cursor: str | None = None
        while True:
            asked: dict[str, str | int] = {"limit": _PAGE}
            if cursor is not None:
                asked["cursor"] = cursor
            page = await self._get("/executions", asked, try_seconds=_PAGE_TRY_SECONDS)
            newer = [item for item in page["items"] if item["id"] > after_id]
            yield newer
            cursor = page["next_cursor"]
            if cursor is None or len(newer) < len(page["items"]):
                return

    async def execution(self, execution_id: int) -> Json:
        """Return one execution with its attempts."""
        return await self._get(f"/executions/{execution_id:d}")

    async def audit(self, *, record: bool) -> Json:
        """Return what a recount found; `record`: of the whole history too."""
        asked: dict[str, str | int] = {"record": str(record).lower(), "examples": 0}
        return await self._get("/audit", asked, try_seconds=_AUDIT_TRY_SECONDS)

    async def _get(
        self, path: str, asked: Mapping[str, str | int] | None = None, *, try_seconds: float = _TRY_SECONDS
    ) -> Json:
        found = await self._call("GET", path, asked=asked, try_seconds=try_seconds)
        assert found is not None
        return found

    async def _call(
        self,
        method: str,
        path: str,
        *,
        asked: Mapping[str, str | int] | None = None,
        body: Mapping[str, object] | None = None,
        try_seconds: float = _TRY_SECONDS,
        missing_ok: bool = False,
    ) -> Json | None:
        """Try one executor after the other until one answers; raises Unreachable when none does in time."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(self._patience_seconds, try_seconds)
        pause_seconds = _PAUSE_FIRST_SECONDS
        async with self._turns:
            while True:
                preferred = self._preferred
                url = f"{self._urls[preferred % len(self._urls)]}/api/v1{path}"
                try:
                    response = await self._http.request(
                        method, url, params=asked, json=body, timeout=try_seconds
                    )
                except httpx.HTTPError as error:
                    reason = str(error) or type(error).__name__
                else:
                    if response.is_success:
                        return _json(response)
                    if missing_ok and response.status_code == httpx.codes.NOT_FOUND:
                        return None
                    reason = _reason(response)
                # Of several calls that fail on one executor, one moves all on.
                if self._preferred == preferred:
                    self._preferred += 1
                if loop.time() > give_up_at:
                    raise Unreachable(
                        f"{url}: no executor answered for {self._patience_seconds:g} s ({reason}); "
                        "is `executor serve` up, and does /readyz say so?"
                    )
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


def _json(response: httpx.Response) -> Json:
    try:
        found = from_json(response.content)
    except ValueError as error:
        raise Unreachable(
            f"{response.url}: answers, but not with JSON ({error}); is it an executor?"
        ) from None
    if not isinstance(found, dict):
        raise Unreachable(f"{response.url}: answers, but not as an executor does; check the URL")
    return found


def _reason(response: httpx.Response) -> str:
    """Return why another try may help; raises Unreachable where none does."""
    try:
        problem = from_json(response.content)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        # A proxy spoke, or another server altogether.
        code, detail = "", f"HTTP {response.status_code}"
    if response.is_server_error or code == Code.UNAVAILABLE:
        return detail
    remedy = (
        "give its token: TURNSTILE_API_TOKEN, or a file: TURNSTILE_API_TOKEN_FILE"
        if code == Code.UNAUTHORIZED
        else "check the URL"
    )
    raise Unreachable(f"{response.url}: {detail}; {remedy}")
