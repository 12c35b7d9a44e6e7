"""Errors as problem documents (RFC 9457), with the same codes as in messages.

In: a `Refusal`, `Unavailable`, an error of the framework, or a bug. Out: `application/problem+json` with
`code` and a `detail` that names the field and the remedy; never a traceback.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal, assert_never, get_args, get_origin
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from turnstile.common.domain.errors import Code, Refusal, Unavailable
from turnstile.common.invalid_values import invalid_values
from turnstile.common.nearest import did_you_mean
from turnstile.executor.api.bodies import JsonRoute
from turnstile.executor.metrics import REFUSED

PREFIX: Final = "/api/v1"
PROBLEM_JSON: Final = "application/problem+json"
_RETRY_AFTER_SECONDS: Final = 1
_OF_EVERY_ROUTE: Final = (
    Code.INVALID_MESSAGE,
    Code.UNKNOWN_FIELD,
    Code.UNAUTHORIZED,
    Code.FORBIDDEN,
    Code.UNAVAILABLE,
)
_STATUS: Final[Mapping[Code, HTTPStatus]] = {
    Code.INVALID_MESSAGE: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.UNKNOWN_FIELD: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.UNSUPPORTED_SCHEMA_VERSION: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.UNKNOWN_ACTION: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.INVALID_PARAMETERS: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.IDEMPOTENCY_CONFLICT: HTTPStatus.CONFLICT,
    Code.SINGLETON_EXISTS: HTTPStatus.CONFLICT,
    Code.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_TERMINAL: HTTPStatus.CONFLICT,
    Code.NOT_TERMINAL: HTTPStatus.CONFLICT,
    Code.IN_USE: HTTPStatus.CONFLICT,
    Code.PRECONDITION_FAILED: HTTPStatus.PRECONDITION_FAILED,
    Code.UNKNOWN_EXECUTION: HTTPStatus.NOT_FOUND,
    Code.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_NAMED_MAX: Final = 5
_NAME_CHARS_MAX: Final = 200


class Refused(Refusal):
    """A refusal whose problem document has further members, like the state that the request met."""

    def __init__(self, code: Code, message: str, **details: Any) -> None:
        super().__init__(code, message)
        self.details = details


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(examples=["urn:turnstile:problem:unknown_action"])
    title: str = Field(examples=["Unknown action"])
    status: int = Field(examples=[422])
    detail: str = Field(description="Names the field and the remedy.")
    code: Code | Literal["internal_error"]


def problem(
    code: Code | Literal["internal_error"], detail: str, *, status: int | None = None, **more: object
) -> Problem:
    """Return the problem document of a code."""
    if status is None:
        status = 500 if code == "internal_error" else _STATUS[Code(code)]
    return Problem(
        type=f"urn:turnstile:problem:{code}",
        title=code.replace("_", " ").capitalize(),
        status=int(status),
        detail=detail,
        code=code,
        **more,
    )


def shown_refusal(refusal: Refusal) -> Problem:
    """Return the problem document of a refusal, which is counted."""
    REFUSED.add(refusal.code)
    details = refusal.details if isinstance(refusal, Refused) else {}
    return problem(refusal.code, refusal.message, **details)


def answer(shown: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a problem document as a response."""
    more = dict(headers or {})
    match shown.code:
        case Code.UNAUTHORIZED:
            more["WWW-Authenticate"] = 'Bearer realm="turnstile"'
        case Code.UNAVAILABLE | Code.QUEUE_FULL:
            more["Retry-After"] = str(_RETRY_AFTER_SECONDS)
        case _:
            pass
    return JSONResponse(
        shown.model_dump(mode="json"), status_code=shown.status, headers=more, media_type=PROBLEM_JSON
    )


def documented(*codes: Code) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route that may refuse with these codes."""
    by_status: dict[int | str, list[str]] = {}
    for code in (*codes, *_OF_EVERY_ROUTE):
        by_status.setdefault(int(_STATUS[code]), []).append(code)
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": ", ".join(sorted(set(names))), "content": content}
        for status, names in by_status.items()
    }


def install(app: FastAPI) -> None:
    """Answer every error with a problem document."""

    async def handle(_: Request, error: Exception) -> JSONResponse:
        return _answer_to(error)

    for kind in (Refusal, Unavailable, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def _answer_to(error: Exception) -> JSONResponse:
    match error:
        case Refusal():
            return answer(shown_refusal(error))
        case Unavailable():
            REFUSED.add(Code.UNAVAILABLE)
            return answer(problem(Code.UNAVAILABLE, str(error)))
        case RequestValidationError():
            return answer(_of_validation(error.errors()))
        case HTTPException():
            return answer(_of_framework(error), error.headers)
        case Exception():
            # The server logs the error; the client only learns that the service failed.
            return answer(problem("internal_error", "the service failed; its log has the error"))
        case _:
            assert_never(error)


def _of_validation(errors: Sequence[Any]) -> Problem:
    unknown = [_field(e) for e in errors if e["type"] == "extra_forbidden"]
    if unknown:
        return problem(Code.UNKNOWN_FIELD, f"{', '.join(unknown)}: no such parameter; see /docs")
    invalid = [each._replace(location=_without_source(each.location)) for each in invalid_values(errors)[:5]]
    return problem(Code.INVALID_MESSAGE, "; ".join(f"{each.path}: {each.sentence}" for each in invalid))


def _field(error: Mapping[str, Any]) -> str:
    return ".".join(map(str, _without_source(error["loc"])))[:200]


def _without_source(location: Sequence[int | str]) -> tuple[int | str, ...]:
    # The first step is only path, query or header.
    return tuple(location[1:] or location)


def _of_framework(error: HTTPException) -> Problem:
    detail = str(error.detail)
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return problem(Code.NOT_FOUND, "path: no such route; see /docs")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "another")
            return problem(Code.INVALID_MESSAGE, f"method: not allowed here; use {allowed}", status=405)
        case _:
            return problem(Code.INVALID_MESSAGE, detail, status=error.status_code)


class ApiRoutes(APIRouter):
    """Routes under the prefix of the API: each refuses unknown parameters, and may refuse as all others do.

    Bodies are `JsonBody`. A route states only the codes that not every route has.
    """

    def __init__(self, *, tag: str, prefix: str = "") -> None:
        super().__init__(
            prefix=PREFIX + prefix,
            tags=[tag],
            route_class=JsonRoute,
            dependencies=[Depends(refuse_unknown_parameters)],
            responses=documented(),
        )


_known: Final[MutableMapping[Callable[..., Any], Mapping[str, bool]]] = WeakKeyDictionary()
"""By the function of a route: each of its parameters, and whether it takes several values."""


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise Refusal if the query has a parameter that the route does not have, or too many values of one.

    It names the nearest known one. A misspelt filter that is ignored would select everything, and of two
    values the last one would win.
    """
    if not request.url.query:
        return
    route: APIRoute = request.scope["route"]
    takes_several = _known.get(route.endpoint)
    if takes_several is None:
        takes_several = _known[route.endpoint] = dict(_parameters(route.dependant))
    given = Counter(name for name, _ in request.query_params.multi_items())
    unknown = [name for name in given if name not in takes_several]
    if unknown:
        known = frozenset(takes_several)
        named = (
            f"{each[:_NAME_CHARS_MAX]}: no such parameter{_hint(each, known)}"
            for each in unknown[:_NAMED_MAX]
        )
        raise Refusal(Code.UNKNOWN_FIELD, "; ".join(named))
    repeated = [name for name, count in given.items() if count > 1 and not takes_several[name]]
    if repeated:
        sentences = (f"{each}: given {given[each]} times; it takes one value" for each in repeated)
        raise Refusal(Code.INVALID_MESSAGE, "; ".join(sentences))


def _hint(name: str, known: frozenset[str]) -> str:
    if not known:
        return "; this route has none"
    return did_you_mean(name, known) or f"; known are {', '.join(sorted(known))}"


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield each parameter, and whether it takes several values."""
    for parameter in dependant.query_params:
        kind = parameter.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                yield field.alias or name, _is_several(field.annotation)
        else:
            yield parameter.alias, _is_several(kind)
    for part in dependant.dependencies:
        yield from _parameters(part)


def _is_several(kind: object) -> bool:
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Collection):
        return True
    return any(_is_several(part) for part in get_args(kind))
