"""Authentication and authorization: API tokens with roles; no request from another site's page.

In: every HTTP request, before its route. Out: the request with its token, None where none is required, or 401
or 403. Reading needs the role READ, and changing OPERATE; a token for some actions reaches only these and
their executions. `EXCEPTIONS` is the table of all else.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from ipaddress import ip_address
from re import Pattern
from typing import Annotated, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.routing import iter_route_contexts
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


class Limit(StrEnum):
    """How a token that is limited to some actions is kept to them."""

    ACTION = "action"
    """The action in the path must be one of them."""
    EXECUTION = "execution"
    """The execution in the path must be of one of them; any other does not exist for it."""
    ROUTE = "route"
    """The route checks the body or filters its list by `CallerScope`, or shows nothing of actions."""


class Right(NamedTuple):
    """What a route needs."""

    role: Role | None
    """None: no token."""
    limit: Limit | None = None
    """None: tokens that are limited to some actions may not request it."""


_FAMILIES: Final[Mapping[str, Limit]] = {
    "/actions/{ref}": Limit.ACTION,
    "/executions/{execution_id}": Limit.EXECUTION,
}
"""Paths with which others begin."""
EXCEPTIONS: Final[Mapping[tuple[str, str], Right]] = {
    # Probes, and the files of the dashboard and of /docs: without data, for which the pages send a token.
    ("GET", "/livez"): Right(None),
    ("GET", "/readyz"): Right(None),
    ("GET", "/"): Right(None),
    ("GET", "/dashboard/{file}"): Right(None),
    ("GET", "/docs"): Right(None),
    ("GET", "/openapi.json"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/whoami"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/actions"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/queues"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/attention"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/history"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/audit-log"): Right(Role.READ, Limit.ROUTE),
    ("GET", "/executions"): Right(Role.READ, Limit.ROUTE),
    ("POST", "/executions"): Right(Role.SUBMIT, Limit.ROUTE),
    # A submitter may also cancel or retry executions whose ids it knows.
    ("POST", "/executions/{execution_id}/cancel"): Right(Role.SUBMIT, Limit.EXECUTION),
    ("POST", "/executions/{execution_id}/retry"): Right(Role.SUBMIT, Limit.EXECUTION),
    # By a filter they reach executions of other submitters.
    ("POST", "/executions/cancel"): Right(Role.OPERATE, Limit.ROUTE),
    ("POST", "/executions/retry"): Right(Role.OPERATE, Limit.ROUTE),
    # A question, which changes nothing.
    ("POST", "/workers/{worker_id}/no-reclaim"): Right(Role.READ),
    ("POST", "/schedules/occurrences"): Right(Role.READ),
    ("GET", "/tokens"): Right(Role.ADMIN),
    ("POST", "/tokens"): Right(Role.ADMIN),
    ("DELETE", "/tokens/{token_id}"): Right(Role.ADMIN),
}
"""By method and path without prefix. Any other route needs READ, or OPERATE if it may change something."""


def right_to(method: str, template: str) -> Right:
    """Return what a route needs."""
    if (found := EXCEPTIONS.get((method, template))) is not None:
        return found
    limits = [limit for start, limit in _FAMILIES.items() if f"{template}/".startswith(f"{start}/")]
    return Right(Role.READ if method in READING else Role.OPERATE, limits[0] if limits else None)


def templates(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield method and path, without prefix, of every route of an application."""
    for context in iter_route_contexts(app.routes):
        for method in sorted((context.methods or {"GET"}) - {"HEAD"}):
            yield method, (context.path or "").removeprefix(PREFIX)


def token_of(request: Request) -> ApiToken | None:
    """Return the token of a request; None: no token is required."""
    token: ApiToken | None = request.state.caller_token
    return token


async def current_caller(request: Request) -> Caller:
    """Return who makes a change, for the audit log."""
    token = token_of(request)
    return Caller(
        name="local" if token is None else token.name,
        address=None if request.client is None else request.client.host,
        channel=_CHANNELS.get(request.headers.get(CHANNEL_HEADER, ""), "api"),
    )


async def caller_scope(request: Request) -> tuple[str, ...] | None:
    """Return prefixes of the actions that the caller may use; None: all."""
    token = token_of(request)
    return None if token is None else token.scope


CurrentCaller = Annotated[Caller, Depends(current_caller)]
CallerScope = Annotated[tuple[str, ...] | None, Depends(caller_scope)]


def route_of(method: str, path: str) -> tuple[Right, Mapping[str, str]]:
    """Return what a request needs, and the parameters of its path."""
    method = "GET" if method in READING else method
    route = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else path
    for (known_method, template), pattern in _PATTERNS:
        if known_method in (method, None) and (found := pattern.match(route)):
            return right_to(method, template), found.groupdict()
    return right_to(method, ""), {}


def _patterns() -> list[tuple[tuple[str | None, str], Pattern[str]]]:
    """Compile as the router does, so that no path means something else here. Literal steps match first."""
    listed = sorted(EXCEPTIONS, key=lambda route: route[1].count("{"))
    families = [(None, path) for start in _FAMILIES for path in (start, f"{start}/{{rest:text}}")]
    return [(route, compile_path(route[1])[0]) for route in (*listed, *families)]


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
        (role, limit), parameters = route_of(scope["method"], scope["path"])
        if role is not None and await self._tokens.required():
            token = await self._token(headers.get("authorization", ""))
            if token is None:
                return problem(Code.UNAUTHORIZED, _SEND_A_TOKEN)
            if token.role < role:
                return _forbidden(_role_words(token, role))
            if token.scope is not None and (refused := await self._outside_scope(token, limit, parameters)):
                return refused
        scope["state"] = {**scope.get("state", {}), "caller_token": token}
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

    async def _outside_scope(
        self, token: ApiToken, limit: Limit | None, parameters: Mapping[str, str]
    ) -> Problem | None:
        """Return why a token that is limited to some actions may not request this, or None."""
        match limit:
            case Limit.ACTION:
                ref = parameters["ref"]
                if token.may_use(ref):
                    return None
                return _forbidden(_scope_words(token, f"the action {ref[:200]!r}"))
            case Limit.EXECUTION:
                execution_id = parameters["execution_id"]
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
                return _forbidden(_scope_words(token, _ALL_ACTIONS))


def refused_routes(token: ApiToken, routes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the routes that a token may not request at all, as `METHOD /path`, each with the reason."""
    refused = {}
    for method, path in routes:
        role, limit = right_to(method, path)
        if role is not None and token.role < role:
            refused[f"{method} {path}"] = _role_words(token, role)
        elif role is not None and token.scope is not None and limit is None:
            refused[f"{method} {path}"] = _scope_words(token, _ALL_ACTIONS)
    return refused


def _forbidden(reason: str) -> Problem:
    return problem(Code.FORBIDDEN, f"header Authorization: {reason}")


def _scope_words(token: ApiToken, subject: str) -> str:
    allowed = ", ".join(f"{prefix}..." for prefix in token.scope or ())
    return f"this concerns {subject}; the token {token.name!r} is for the actions {allowed}"


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
