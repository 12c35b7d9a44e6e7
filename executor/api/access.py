"""Who is let in, and for what: bearers of a token, where tokens are set; and no page of another site, ever.

In: every HTTP request, before any route sees it. Out: the same, with `request.state.bearer_name` (who it is,
for the record of changes; None where no token is asked for), or 401 or 403. `roles` says which route asks for
what, `executor.bearers` whose token it is.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.common.domain.errors import Code
from turnstile.executor.api.problems import Problem, answer, problem
from turnstile.executor.api.roles import READING, role_of
from turnstile.executor.bearers import Bearer, Bearers, Role
from turnstile.executor.metrics import REFUSED

_SHOW_A_TOKEN: Final = "header Authorization: send 'Bearer <token>' with a token of this service"

_ASK_BY_ADDRESS: Final = (
    "header Host: without tokens this service is for programs of its own host, which ask for localhost or an "
    "address; set TURNSTILE_API_TOKENS to be asked by another name"
)


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, bearers: Bearers, own_hosts: Collection[str] | None) -> None:
        """`own_hosts`: names by which this host is asked; None where any name will do."""
        self._app = app
        self._bearers = bearers
        self._own_hosts = own_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            REFUSED.add(refused.code)
            await answer(refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Problem | None:
        """Note who it is in the scope; return why it is not let in, or None."""
        headers = Headers(scope=scope)
        bearer = None
        role = role_of(scope["method"], scope["path"])
        if role is not None and self._bearers.required:
            bearer = self._bearer(headers.get("authorization", ""))
            if bearer is None:
                return problem(Code.UNAUTHORIZED, _SHOW_A_TOKEN)
            if bearer.role < role:
                return _beyond(bearer, role)
        scope["state"] = {**scope.get("state", {}), "bearer_name": None if bearer is None else bearer.name}
        if self._own_hosts is not None and not _names_one(headers.get("host", ""), self._own_hosts):
            return problem(Code.FORBIDDEN, _ASK_BY_ADDRESS)
        # A browser sends its user's requests to a loopback address for any page, and names the page.
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in READING and _host(origin) != headers.get("host"):
            return problem(
                Code.FORBIDDEN, "header Origin: a page of another site may not change anything here"
            )
        return None

    def _bearer(self, authorization: str) -> Bearer | None:
        scheme, _, token = authorization.partition(" ")
        found = self._bearers.bearer_of(token.strip())
        return found if scheme.lower() == "bearer" else None


def _beyond(bearer: Bearer, role: Role) -> Problem:
    return problem(
        Code.FORBIDDEN,
        f"header Authorization: this takes a token with the role {role.word!r}; that of {bearer.name!r} has "
        f"{bearer.role.word!r}",
    )


def _names_one(host: str, own_hosts: Collection[str]) -> bool:
    """Tell whether `Host` is one of ours or an address: a stranger's name may lead here too (rebinding)."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not name or name.lower() in own_hosts:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
