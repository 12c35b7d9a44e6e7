"""Conditional requests (RFC 9110, section 13): `If-Match` and `If-None-Match` against an `ETag`.

In: the headers of a request, and the stored definition. Out: a `Refusal` if it is not in the state
that the caller names. The caller of these checks holds the lock under which the definition is changed.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header
from pydantic import BaseModel

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.callers import Caller

_DIGEST_BYTES: Final = 12

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
class ConditionalCaller:
    """Who requests a change, and of which state."""

    who: Caller
    if_match: str | None


async def _conditional(who: CurrentCaller, if_match: IfMatch = None) -> ConditionalCaller:
    return ConditionalCaller(who=who, if_match=if_match)


CurrentConditionalCaller = Annotated[ConditionalCaller, Depends(_conditional)]


def tag_of(stored: BaseModel, model: type[BaseModel]) -> str:
    """Return the `ETag` of this state of a definition: it changes with each field of `model`."""
    content = stored.model_dump_json(include=set(model.model_fields)).encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES)
    return f'"{digest.hexdigest()}"'


def tags_in(header: str) -> set[str]:
    """Return the tags of a header."""
    return {tag.strip() for tag in header.split(",")}


def check_match(if_match: str | None, tag: str | None, subject: str) -> None:
    """Raise Refusal unless `If-Match` names the state `tag`; None: the subject does not exist."""
    if if_match is None:
        return
    if tag is None:
        raise Refusal(
            Code.PRECONDITION_FAILED, f"header If-Match: the {subject} does not exist; omit the header"
        )
    tags = tags_in(if_match)
    if "*" not in tags and tag not in tags:
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-Match: the {subject} was changed since then, its ETag is {tag}; "
            "read it again, then repeat the change",
        )
