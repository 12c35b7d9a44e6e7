"""Who is let in: bearers of a token, where tokens are set; and no page of another site, token or not.

In: every HTTP request, before any route sees it. Out: the same, or 401 or 403. `/livez` and `/readyz` are
open to everybody.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from common.domain.errors import Code
from executor.api.problems import Problem, answer, problem

_OPEN: Final = frozenset({"/livez", "/readyz", "/api/v1/livez", "/api/v1/readyz"})
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, tokens: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(token.encode()) for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await answer(refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Problem | None:
        if scope["path"] in _OPEN:
            return None
        headers = Headers(scope=scope)
        if self._digests and not self._is_bearer(headers.get("authorization", "")):
            return problem(
                Code.UNAUTHORIZED, "header Authorization: send 'Bearer <token>' with a token of this service"
            )
        # A browser sends its user's requests to a loopback address for any page, and names the page.
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in _READING and _host(origin) != headers.get("host"):
            return problem(
                Code.FORBIDDEN, "header Origin: a page of another site may not change anything here"
            )
        return None

    def _is_bearer(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        shown = _digest(token.strip().encode())
        # All are compared, each in constant time: how long it takes tells nothing.
        known = [hmac.compare_digest(shown, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(known)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
