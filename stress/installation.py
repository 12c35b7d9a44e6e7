"""The installation under test: its URLs and its HTTP API."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

import httpx
from pydantic import SecretStr
from pydantic_core import from_json

from turnstile.common.domain.errors import Code, TurnstileError
from turnstile.common.urls import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The URLs of a running system, and its timing."""

    amqp_url: SecretStr
    http_urls: tuple[str, ...]
    """Of the executors; each may be unavailable for a while."""
    api_token: SecretStr | None = None
    trace_folder: Path | None = None
    """The trace folder of the actions on this host; None: they return starts and stops in their results."""
    watchdog_seconds: float = 1.0
    """The tick of the watchdog."""
    lease_seconds: float = 15.0

    @property
    def is_on_this_host(self) -> bool:
        """Whether all executors have loopback addresses."""
        return all(is_loopback(urlsplit(url).hostname or "") for url in self.http_urls)

    def describe(self) -> str:
        """Return its URLs without passwords."""
        broker = urlsplit(self.amqp_url.get_secret_value())
        where = f"{broker.hostname}:{broker.port}" if broker.port else str(broker.hostname)
        return f"{', '.join(self.http_urls)}, broker {where}, vhost {unquote(broker.path[1:]) or '/'}"


PATIENCE_SECONDS: Final = 60.0
_TRY_SECONDS: Final = 5.0
_PAGE_TRY_SECONDS: Final = 20.0
_AUDIT_TRY_SECONDS: Final = 40.0
_PAUSE_FIRST_SECONDS: Final = 0.05
_PAUSE_MAX_SECONDS: Final = 1.0
_PAGE: Final = 1000
_CALLS_MAX: Final = 4

Json = dict[str, Any]


def action_path(ref: str) -> str:
    """Return the path of an action below `/api/v1`."""
    return f"actions/{quote(ref, safe='')}"


def resource_path(name: str) -> str:
    """Return the path of a resource below `/api/v1`."""
    return f"resources/{quote(name, safe='')}"


class Unreachable(TurnstileError):
    """The installation does not respond; the message names the URL and what to do."""


class Api:
    """The HTTP API, as an async context manager; safe to share between the tasks of one loop.

    Returns plain JSON values: a model per row would cost more than reading a million rows. A call without a
    response goes to the next executor, and is repeated for the duration of a restart; all calls are
    idempotent.
    """

    def __init__(self, installation: Installation, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        token = installation.api_token
        self._urls = installation.http_urls
        self._patience_seconds = patience_seconds
        self._preferred = 0
        self._http = httpx.AsyncClient(
            headers={} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"},
            timeout=_TRY_SECONDS,
            # Proxies of the environment are for other hosts.
            trust_env=not installation.is_on_this_host,
        )
        # An executor serves few reads concurrently; httpx's own queue gets slower with each waiting call.
        self._calls = asyncio.Semaphore(_CALLS_MAX)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def put(self, path: str, fields: Mapping[str, object]) -> None:
        """Store the definition at a path below `/api/v1`; missing fields get their defaults."""
        await self._call("PUT", f"/{path}", body=fields)

    async def change(self, path: str, fields: Mapping[str, object]) -> None:
        """Change some fields of the definition at a path below `/api/v1`."""
        await self._call("PATCH", f"/{path}", body=fields)

    async def delete(self, path: str) -> None:
        """Delete what is at a path below `/api/v1`, if it exists."""
        await self._call("DELETE", f"/{path}", missing_ok=True)

    async def read(self, path: str) -> Json:
        """Return what is at a path below `/api/v1`."""
        return await self._get(f"/{path}")

    async def listed(self, path: str) -> AsyncIterator[Json]:
        """Yield the items of a list, page by page."""
        async for page in self._pages(f"/{path}"):
            for item in page["items"]:
                yield item

    async def action(self, ref: str) -> Json | None:
        """Return a definition, or None where the action is unknown."""
        return await self._call("GET", f"/{action_path(ref)}", missing_ok=True)

    async def resume(self, ref: str) -> None:
        """Resume a paused action."""
        await self._call("POST", f"/{action_path(ref)}/resume")

    async def queue_stats(self, ref: str) -> Json:
        """Return the counters of an action."""
        return await self._get(f"/{action_path(ref)}/queue-stats")

    async def live_workers(self) -> list[Json]:
        """Return the live workers, the newest first."""
        found = await self._get("/workers", {"state": "live", "limit": _PAGE})
        return list(found["items"])

    async def newest_id(self) -> int:
        """Return the id of the newest execution, or 0."""
        found = await self.newest()
        return 0 if found is None else int(found["id"])

    async def newest(self, *, status: str | None = None) -> Json | None:
        """Return the newest execution, or the newest one with a status; None: there is none."""
        query: dict[str, str | int] = {"limit": 1}
        if status is not None:
            query["status"] = status
        found = await self._get("/executions", query)
        return found["items"][0] if found["items"] else None

    async def executions(self, *, after_id: int) -> AsyncIterator[list[Json]]:
        """Yield all executions with larger ids, page by page, the newest first."""
        async for page in self._pages("/executions", try_seconds=_PAGE_TRY_SECONDS):
            newer = [item for item in page["items"] if item["id"] > after_id]
            yield newer
            if len(newer) < len(page["items"]):
                return

    async def execution(self, execution_id: int) -> Json:
        """Return one execution with its attempts."""
        return await self._get(f"/executions/{execution_id:d}")

    async def audit(self, *, record: bool) -> Json:
        """Return the result of the audit; `record`: including the whole history."""
        query: dict[str, str | int] = {"record": str(record).lower(), "examples": 0}
        return await self._get("/audit", query, try_seconds=_AUDIT_TRY_SECONDS)

    async def _pages(self, path: str, *, try_seconds: float = _TRY_SECONDS) -> AsyncIterator[Json]:
        query: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = await self._get(path, query, try_seconds=try_seconds)
            yield page
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    async def _get(
        self, path: str, query: Mapping[str, str | int] | None = None, *, try_seconds: float = _TRY_SECONDS
    ) -> Json:
        found = await self._call("GET", path, query=query, try_seconds=try_seconds)
        assert found is not None
        return found

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, object] | None = None,
        try_seconds: float = _TRY_SECONDS,
        missing_ok: bool = False,
    ) -> Json | None:
        """Try each executor in turn until one responds; raises Unreachable on timeout."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(self._patience_seconds, try_seconds)
        pause_seconds = _PAUSE_FIRST_SECONDS
        async with self._calls:
            while True:
                preferred = self._preferred
                url = f"{self._urls[preferred % len(self._urls)]}/api/v1{path}"
                try:
                    response = await self._http.request(
                        method, url, params=query, json=body, timeout=try_seconds
                    )
                except httpx.HTTPError as error:
                    reason = str(error) or type(error).__name__
                else:
                    if response.is_success:
                        return _json(response)
                    if missing_ok and response.status_code == httpx.codes.NOT_FOUND:
                        return None
                    reason = _reason(response)
                # Of several calls that fail on one executor, only the first switches to the next.
                if self._preferred == preferred:
                    self._preferred += 1
                if loop.time() > give_up_at:
                    raise Unreachable(
                        f"{url}: no executor responded for {self._patience_seconds:g} s ({reason}); "
                        "check that `executor serve` runs and that its /readyz succeeds"
                    )
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)


def _json(response: httpx.Response) -> Json:
    try:
        found = from_json(response.content)
    except ValueError as error:
        raise Unreachable(
            f"{response.url}: the response is not JSON ({error}); check that it is the URL of an executor"
        ) from None
    if not isinstance(found, dict):
        raise Unreachable(f"{response.url}: the response is not that of an executor; check the URL")
    return found


def _reason(response: httpx.Response) -> str:
    """Return the reason for a retry; raises Unreachable where a retry cannot help."""
    try:
        problem = from_json(response.content)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        # The response of a proxy or of another server.
        code, detail = "", f"HTTP {response.status_code}"
    if response.is_server_error or code == Code.UNAVAILABLE:
        return detail
    remedy = (
        "set its token in TURNSTILE_API_TOKEN, or a file with it in TURNSTILE_API_TOKEN_FILE"
        if code == Code.UNAUTHORIZED
        else "check the URL"
    )
    raise Unreachable(f"{response.url}: {detail}; {remedy}")
