"""Refuses parameters in the query of a URL that its route does not have: for every route of the API.

In: a request and the route that matched it. Out: nothing, or a `Refusal` that names the parameter and the
nearest known one. Without it, a misspelt filter would silently select everything.
"""

from collections.abc import Iterator
from typing import Final

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.nearest import did_you_mean

_NAMED_MAX: Final = 5
_NAME_CHARS_MAX: Final = 200


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise Refusal if the query has a parameter that the route does not have."""
    if not request.url.query:
        return
    route: APIRoute = request.scope["route"]
    known = frozenset(_names(route.dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if not unknown:
        return
    named = (
        f"{each[:_NAME_CHARS_MAX]}: no such parameter{_hint(each, known)}" for each in unknown[:_NAMED_MAX]
    )
    raise Refusal(Code.UNKNOWN_FIELD, "; ".join(named))


def _hint(name: str, known: frozenset[str]) -> str:
    if not known:
        return "; this route has none"
    return did_you_mean(name, known) or f"; known are {', '.join(sorted(known))}"


def _names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        model = parameter.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (field.alias or name for name, field in model.model_fields.items())
        else:
            yield parameter.alias
    for part in dependant.dependencies:
        yield from _names(part)
