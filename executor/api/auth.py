"""Authentication and authorization: API tokens with roles; no request from another site's page.

In: every HTTP request, before its route. Out: the request with `request.state.caller_name` (for the audit
log) and `request.state.caller_role`, both None where no token is required, or 401 or 403. `ROLES` is the
table of required roles, `LIMITS` the one of what tokens for some actions may request.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from re import Pattern
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.common.domain.errors import Code, Unavailable
from turnstile.executor.api.problems import PREFIX, Problem, answer, problem
from turnstile.executor.api_tokens import ApiToken, Role
from turnstile.executor.callers import CHANNEL_HEADER, Caller, Channel
from turnstile.executor.metrics import REFUSED
from turnstile.executor.stored_tokens import AcceptedTokens

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
ActionOf: TypeAlias = Callable[[int], Awaitable[str | None]]
_CHANNELS: Final[Mapping[str, Channel]] = {"cli": "cli", "dashboard": "dashboard"}
_SEND_A_TOKEN: Final = (
    "header Authorization: send 'Bearer <token>' with a valid token of this service; the command line and "
    "the Python clients take it from TURNSTILE_API_TOKEN"
)
_ALL_ACTIONS: Final = "more than single actions"
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
    # Probes, and the files of the dashboard and of /docs: without data, for which the pages send a token.
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/dashboard/{file}"): None,
    ("GET", "/docs"): None,
    ("GET", "/openapi.json"): Role.READ,
    ("GET", "/whoami"): Role.READ,
    ("GET", "/metrics"): Role.READ,
    ("GET", "/audit"): Role.READ,
    ("GET", "/audit-log"): Role.READ,
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
    ("GET", "/submissions/{request_id}"): Role.READ,
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
    ("GET", "/pools"): Role.READ,
    ("GET", "/pools/{name}"): Role.READ,
    ("GET", "/pools/{name}/changes"): Role.READ,
    ("GET", "/pools/{name}/queue"): Role.READ,
    ("PUT", "/pools/{name}"): Role.OPERATE,
    ("PATCH", "/pools/{name}"): Role.OPERATE,
    ("POST", "/pools/{name}/pause"): Role.OPERATE,
    ("POST", "/pools/{name}/resume"): Role.OPERATE,
    ("GET", "/queues"): Role.READ,
    ("GET", "/workers"): Role.READ,
    ("GET", "/workers/{worker}"): Role.READ,
    ("POST", "/workers/{worker_id}/drain"): Role.OPERATE,
    # A question, which changes nothing.
    ("POST", "/workers/{worker_id}/no-reclaim"): Role.READ,
    ("GET", "/dead-letters"): Role.READ,
    ("GET", "/dead-letters/{name}"): Role.READ,
    ("POST", "/dead-letters/replay"): Role.OPERATE,
    ("POST", "/dead-letters/purge"): Role.OPERATE,
    ("GET", "/tokens"): Role.ADMIN,
    ("POST", "/tokens"): Role.ADMIN,
    ("DELETE", "/tokens/{token_id}"): Role.ADMIN,
    ("GET", "/webhooks"): Role.READ,
    ("POST", "/webhooks/replay"): Role.OPERATE,
}


class Limit(StrEnum):
    """How a token that is limited to some actions is kept to them."""

    ACTION = "action"
    """The action in the path must be one of them."""
    EXECUTION = "execution"
    """The execution in the path must be of one of them; any other does not exist for it."""
    ROUTE = "route"
    """The route checks the body or filters its list by `CallerScope`, or shows nothing of actions."""


LIMITS: Final[Mapping[tuple[str, str], Limit]] = {
    **{route: Limit.ACTION for route in ROLES if route[1].startswith("/actions/{ref}")},
    **{route: Limit.EXECUTION for route in ROLES if route[1].startswith("/executions/{execution_id}")},
    ("POST", "/executions"): Limit.ROUTE,
    ("GET", "/executions"): Limit.ROUTE,
    ("POST", "/executions/cancel"): Limit.ROUTE,
    ("POST", "/executions/retry"): Limit.ROUTE,
    ("GET", "/actions"): Limit.ROUTE,
    ("GET", "/queues"): Limit.ROUTE,
    ("GET", "/audit-log"): Limit.ROUTE,
    ("GET", "/openapi.json"): Limit.ROUTE,
    ("GET", "/whoami"): Limit.ROUTE,
}
"""Routes for tokens that are limited to some actions; all others refuse them."""


async def current_caller(request: Request) -> Caller:
    """Return who makes a change, for the audit log."""
    name: str | None = getattr(request.state, "caller_name", None)
    return Caller(
        name="local" if name is None else name,
        address=None if request.client is None else request.client.host,
        channel=_CHANNELS.get(request.headers.get(CHANNEL_HEADER, ""), "api"),
    )


async def caller_scope(request: Request) -> tuple[str, ...] | None:
    """Return prefixes of the actions that the caller may use; None: all."""
    scope: tuple[str, ...] | None = getattr(request.state, "caller_scope", None)
    return scope


CurrentCaller = Annotated[Caller, Depends(current_caller)]
CallerScope = Annotated[tuple[str, ...] | None, Depends(caller_scope)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a request needs."""

    role: Role | None
    """None: no token."""
    limit: Limit | None = None
    """None: tokens that are limited to some actions may not request it."""
    parameters: Mapping[str, str] = field(default_factory=dict)


def route_of(method: str, path: str) -> Route:
    """Return what a request needs.

    A route that is not listed needs the highest role of settings if it may change something.
    """
    reads = method in READING
    route = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else path
    for pattern, role, limit in _PATTERNS.get("GET" if reads else method, ()):
        if found := pattern.match(route):
            return Route(role=role, limit=limit, parameters=found.groupdict())
    return Route(role=Role.READ if reads else Role.OPERATE)


def _patterns() -> dict[str, list[tuple[Pattern[str], Role | None, Limit | None]]]:
    found: dict[str, list[tuple[Pattern[str], Role | None, Limit | None]]] = {}
    # Literal steps match before parameters.
    for (method, path), role in sorted(ROLES.items(), key=lambda entry: entry[0][1].count("{")):
        # Compiled as the router does, so that no path means something else here.
        found.setdefault(method, []).append((compile_path(path)[0], role, LIMITS.get((method, path))))
    return found


_PATTERNS: Final = _patterns()


class TokenMiddleware:
    """ASGI middleware that checks every request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: AcceptedTokens,
        own_hosts: Collection[str] | None,
        action_of: ActionOf,
    ) -> None:
        """`own_hosts`: allowed names of this host while no token is required; None: any name.

        `action_of` returns the action of an execution, or None.
        """
        self._app = app
        self._tokens = tokens
        self._own_hosts = own_hosts
        self._action_of = action_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = None
        if scope["type"] == "http":
            try:
                refused = await self._refused(scope)
            except Unavailable as error:
                refused = problem(Code.UNAVAILABLE, str(error))
        if refused is None:
            await self._app(scope, receive, send)
        else:
            REFUSED.add(refused.code)
            await answer(refused)(scope, receive, send)

    async def _refused(self, scope: Scope) -> Problem | None:
        """Store the token of the caller in the scope; return why the request is refused, or None."""
        headers = Headers(scope=scope)
        token = None
        route = route_of(scope["method"], scope["path"])
        if route.role is not None and await self._tokens.required():
            token = await self._token(headers.get("authorization", ""))
            if token is None:
                return problem(Code.UNAUTHORIZED, _SEND_A_TOKEN)
            if token.role < route.role:
                return _lacks_role(token, route.role)
            if token.scope is not None and (refused := await self._outside_scope(token, route)) is not None:
                return refused
        scope["state"] = {
            **scope.get("state", {}),
            "caller_token": token,
            "caller_name": None if token is None else token.name,
            "caller_role": None if token is None else token.role,
            "caller_scope": None if token is None else token.scope,
        }
        if await self._is_foreign(headers.get("host", "")):
            return problem(Code.FORBIDDEN, _USE_AN_ADDRESS)
        # A browser sends requests to loopback addresses for any page, and names the page's site.
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in READING and _site(origin) != headers.get("host"):
            return problem(
                Code.FORBIDDEN, "header Origin: a page of another site may not change anything here"
            )
        return None

    async def _is_foreign(self, host: str) -> bool:
        """Return whether `Host` is a foreign name while no token is required."""
        if self._own_hosts is None or _is_own_host(host, self._own_hosts):
            return False
        try:
            return not await self._tokens.required()
        except Unavailable:
            # Only probes and files come here: a probe must not fail because the database does not answer.
            return False

    async def _token(self, authorization: str) -> ApiToken | None:
        scheme, _, token = authorization.partition(" ")
        return (
            await self._tokens.find(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        )

    async def _outside_scope(self, token: ApiToken, route: Route) -> Problem | None:
        """Return why a token that is limited to some actions may not request this, or None."""
        match route.limit:
            case Limit.ACTION:
                ref = str(route.parameters["ref"])
                return None if token.may_use(ref) else _lacks_scope(token, f"the action {ref[:200]!r}")
            case Limit.EXECUTION:
                execution_id = str(route.parameters["execution_id"])
                # What is no id is refused by the route.
                if not (execution_id.isascii() and execution_id.isdigit() and len(execution_id) < 19):
                    return None
                found = await self._action_of(int(execution_id))
                if found is None or token.may_use(found):
                    return None
                # As if there were none: ids of others are nothing to try.
                return problem(Code.NOT_FOUND, f"execution_id: there is no execution {execution_id}")
            case Limit.ROUTE:
                return None
            case None:
                return _lacks_scope(token, _ALL_ACTIONS)


def refused_routes(token: ApiToken) -> dict[str, str]:
    """Return the routes that a token may not request at all, as `METHOD /path`, each with the reason."""
    refused = {}
    for (method, path), role in ROLES.items():
        if role is not None and token.role < role:
            refused[f"{method} {path}"] = _role_words(token, role)
        elif role is not None and token.scope is not None and (method, path) not in LIMITS:
            refused[f"{method} {path}"] = _scope_words(token, _ALL_ACTIONS)
    return refused


def _lacks_scope(token: ApiToken, subject: str) -> Problem:
    return problem(Code.FORBIDDEN, f"header Authorization: {_scope_words(token, subject)}")


def _scope_words(token: ApiToken, subject: str) -> str:
    allowed = ", ".join(f"{prefix}..." for prefix in token.scope or ())
    return f"this concerns {subject}; the token {token.name!r} is for the actions {allowed}"


def _lacks_role(token: ApiToken, role: Role) -> Problem:
    return problem(Code.FORBIDDEN, f"header Authorization: {_role_words(token, role)}")


def _role_words(token: ApiToken, role: Role) -> str:
    return f"this needs a token with the role {role.word!r}; that of {token.name!r} has {token.role.word!r}"


def _is_own_host(host: str, own_hosts: Collection[str]) -> bool:
    """Return whether `Host` is ours, by name or address: a foreign name may resolve to us (DNS rebinding)."""
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
