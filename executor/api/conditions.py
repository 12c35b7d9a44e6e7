"""Conditional requests (RFC 9110, section 13): `If-Match` and `If-None-Match` against an `ETag`.

A change carries these headers to the leader, which compares them with what is stored when it decides
(`leader.commands`); a read compares here.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header

from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.callers import Caller

IfMatch = Annotated[
    str | None,
    Header(
        description="An `ETag`, unchanged: the change is made only if the definition still has it. `*`: only "
        "if it exists."
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(description="An `ETag`, unchanged: 304 without a body while the definition has it."),
]
TAGGED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {
            "ETag": {
                "description": "Identifies this state of the definition; for If-Match and If-None-Match.",
                "schema": {"type": "string"},
                "example": '"4f1d2c9ab0e83d55c1a7f6e2"',
            }
        }
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConditionalCaller:
    """Who requests a change, and of which state; None: of any."""

    who: Caller
    if_match: str | None


async def _conditional(who: CurrentCaller, if_match: IfMatch = None) -> _ConditionalCaller:
    return _ConditionalCaller(who=who, if_match=if_match)


ConditionalCaller = Annotated[_ConditionalCaller, Depends(_conditional)]


def is_unchanged(if_none_match: str | None, tag: str) -> bool:
    """Return whether `If-None-Match` names the state `tag`; `*` names any."""
    if if_none_match is None:
        return False
    tags = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in tags or tag in tags
