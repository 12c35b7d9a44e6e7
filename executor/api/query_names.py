"""Refuses parameters of a URL that its route does not have, and several values of one that takes one.

In: a request and the route that matched it: any but pages and probes. Out: nothing, or a `Refusal` that names
the parameter and the nearest known one. Without it, a misspelt filter would silently select everything, and
of two values the last one would win.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.nearest import did_you_mean

_NAMED_MAX: Final = 5
_NAME_CHARS_MAX: Final = 200


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise Refusal if the query has a parameter that the route does not have, or too many values of one."""
    if not request.url.query:
        return
    route: APIRoute = request.scope["route"]
    takes_several = dict(_parameters(route.dependant))
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
