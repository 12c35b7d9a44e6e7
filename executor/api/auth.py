"""Authentication and authorization: API tokens with roles; no request from another site's page.

In: every HTTP request, before its route. Out: the request with `request.state.caller_name` (for the change
logs) and `request.state.caller_role`, both None where no token is required, or 401 or 403. `ROLES` is the
table of required roles.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from re import Pattern
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.common.domain.errors import Code
from turnstile.executor.api.problems import Problem, answer, problem
from turnstile.executor.api_tokens import ApiToken, ApiTokens, Role
from turnstile.executor.metrics import REFUSED

PREFIX: Final = "/api/v1"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SEND_A_TOKEN: Final = "header Authorization: send 'Bearer <token>' with a token of this service"
_USE_AN_ADDRESS: Final = (
    "header Host: without tokens only programs of this host may use the service, under localhost or an "
    "address; set TURNSTILE_API_TOKENS to allow other names"
)


class _Text(Convertor[str]):
    """The rest of a path, also with slashes and line breaks."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _Text())

ROLES: Final[Mapping[tuple[str, str], Role | None]] = {
    # Probes, and the dashboard's files, which contain no data: the page sends a token for that.
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/dashboard/{file}"): None,
    ("GET", "/docs"): Role.READ,
    ("GET", "/docs/oauth2-redirect"): Role.READ,
    ("GET", "/openapi.json"): Role.READ,
    ("GET", "/metrics"): Role.READ,
    ("GET", "/audit"): Role.READ,
    ("GET", "/events"): Role.READ,
    ("GET", "/executions"): Role.READ,
    ("GET", "/executions/{execution_id}"): Role.READ,
    ("GET", "/executions/{execution_id}/logs"): Role.READ,
    ("POST", "/executions"): Role.SUBMIT,
    # A submitter may also cancel or retry executions whose ids it knows.
    ("POST", "/executions/{execution_id}/cancel"): Role.SUBMIT,
    ("POST", "/executions/{execution_id}/retry"): Role.SUBMIT,
    # By a filter they reach executions of other submitters.
    ("POST", "/executions/cancel"): Role.OPERATE,
    ("POST", "/executions/retry"): Role.OPERATE,
    ("GET", "/actions"): Role.READ,
    ("GET", "/actions/{ref}"): Role.READ,
    ("GET", "/actions/{ref}/changes"): Role.READ,
    ("GET", "/actions/{ref}/queue"): Role.READ,
    ("GET", "/actions/{ref}/queue-stats"): Role.READ,
    ("PUT", "/actions/{ref}"): Role.OPERATE,
    ("PATCH", "/actions/{ref}"): Role.OPERATE,
    ("DELETE", "/actions/{ref}"): Role.OPERATE,
    ("POST", "/actions/{ref}/pause"): Role.OPERATE,
    ("POST", "/actions/{ref}/resume"): Role.OPERATE,
    ("GET", "/actions/{ref}/keys"): Role.READ,
    ("GET", "/actions/{ref}/keys/{key:text}"): Role.READ,
    ("PUT", "/actions/{ref}/keys/{key:text}"): Role.OPERATE,
    ("DELETE", "/actions/{ref}/keys/{key:text}"): Role.OPERATE,
    ("GET", "/resources"): Role.READ,
    ("GET", "/resources/{name}"): Role.READ,
    ("GET", "/resources/{name}/changes"): Role.READ,
    ("GET", "/resources/{name}/queue"): Role.READ,
    ("PUT", "/resources/{name}"): Role.OPERATE,
    ("PATCH", "/resources/{name}"): Role.OPERATE,
    ("DELETE", "/resources/{name}"): Role.OPERATE,
    ("POST", "/resources/{name}/pause"): Role.OPERATE,
    ("POST", "/resources/{name}/resume"): Role.OPERATE,
    ("GET", "/queues"): Role.READ,
    ("GET", "/workers"): Role.READ,
    ("POST", "/workers/{worker_id}/drain"): Role.OPERATE,
    ("GET", "/dead-letters"): Role.READ,
    ("GET", "/dead-letters/{name}"): Role.READ,
    ("POST", "/dead-letters/replay"): Role.OPERATE,
    ("POST", "/dead-letters/purge"): Role.OPERATE,
    ("GET", "/webhooks"): Role.READ,
    ("POST", "/webhooks/replay"): Role.OPERATE,
}


async def caller_name(request: Request) -> str:
    """Return who makes a change, for the log of changes."""
    name: str | None = getattr(request.state, "caller_name", None)
    return "local" if name is None else name


CallerName = Annotated[str, Depends(caller_name)]


def role_of(method: str, path: str) -> Role | None:
    """Return the role that a request needs; None: no token is needed.

    A route that is not listed needs the highest role if it may change something.
    """
    reads = method in READING
    route = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else path
    for pattern, role in _PATTERNS.get("GET" if reads else method, ()):
        if pattern.match(route):
            return role
    return Role.READ if reads else Role.OPERATE


def _patterns() -> dict[str, list[tuple[Pattern[str], Role | None]]]:
    found: dict[str, list[tuple[Pattern[str], Role | None]]] = {}
    # Literal steps match before parameters.
    for (method, path), role in sorted(ROLES.items(), key=lambda entry: entry[0][1].count("{")):
        # Compiled as the router does, so that no path means something else here.
        found.setdefault(method, []).append((compile_path(path)[0], role))
    return found


_PATTERNS: Final = _patterns()


class Gate:
    """ASGI middleware that checks every request."""

    def __init__(self, app: ASGIApp, *, tokens: ApiTokens, own_hosts: Collection[str] | None) -> None:
        """`own_hosts`: allowed names of this host; None: any name."""
        self._app = app
        self._tokens = tokens
        self._own_hosts = own_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            REFUSED.add(refused.code)
            await answer(refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> Problem | None:
        """Store name and role of the token in the scope; return why the request is refused, or None."""
        headers = Headers(scope=scope)
        token = None
        role = role_of(scope["method"], scope["path"])
        if role is not None and self._tokens.required:
            token = self._token(headers.get("authorization", ""))
            if token is None:
                return problem(Code.UNAUTHORIZED, _SEND_A_TOKEN)
            if token.role < role:
                return _lacks_role(token, role)
        name, its_role = (None, None) if token is None else (token.name, token.role)
        scope["state"] = {**scope.get("state", {}), "caller_name": name, "caller_role": its_role}
        if self._own_hosts is not None and not _is_own_host(headers.get("host", ""), self._own_hosts):
            return problem(Code.FORBIDDEN, _USE_AN_ADDRESS)
        # A browser sends requests to loopback addresses for any page, and names the page's site.
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in READING and _site(origin) != headers.get("host"):
            return problem(
                Code.FORBIDDEN, "header Origin: a page of another site may not change anything here"
            )
        return None

    def _token(self, authorization: str) -> ApiToken | None:
        scheme, _, token = authorization.partition(" ")
        found = self._tokens.find(token.strip())
        return found if scheme.lower() == "bearer" else None


def _lacks_role(token: ApiToken, role: Role) -> Problem:
    return problem(
        Code.FORBIDDEN,
        f"header Authorization: this needs a token with the role {role.word!r}; that of {token.name!r} has "
        f"{token.role.word!r}",
    )


def _is_own_host(host: str, own_hosts: Collection[str]) -> bool:
    """Tell whether `Host` is an own name or an address: a foreign name may resolve to us (DNS rebinding)."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not name or name.lower() in own_hosts:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _site(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
