"""Conditional requests (RFC 9110, section 13): `If-Match` and `If-None-Match` against an `ETag`.

In: the headers of a request, and the stored definition. Out: a `Refusal` if it is not in the state
that the caller names. The caller of these checks holds the lock under which the definition is changed.
"""

import hashlib
from collections.abc import Callable
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
class _ConditionalCaller:
    """Who requests a change, and of which state."""

    who: Caller
    if_match: str | None

    def check(
        self, model: type[BaseModel], subject: str, *, if_none_match: str | None = None
    ) -> Callable[[BaseModel | None], None] | None:
        """Return what raises Refusal if a stored definition is not in the state that the headers name.

        None: they name no state. `model` has the fields that count, `subject` is the word for the definition.
        """
        if self.if_match is None and if_none_match is None:
            return None

        def check(stored: BaseModel | None) -> None:
            tag = None if stored is None else tag_of(stored, model)
            _check_match(self.if_match, tag, subject)
            _check_none_match(if_none_match, tag, subject)

        return check


async def _conditional(who: CurrentCaller, if_match: IfMatch = None) -> _ConditionalCaller:
    return _ConditionalCaller(who=who, if_match=if_match)


ConditionalCaller = Annotated[_ConditionalCaller, Depends(_conditional)]


def tag_of(stored: BaseModel, model: type[BaseModel]) -> str:
    """Return the `ETag` of this state of a definition: it changes with each field of `model`."""
    content = stored.model_dump_json(include=set(model.model_fields)).encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES)
    return f'"{digest.hexdigest()}"'


def is_unchanged(if_none_match: str | None, tag: str) -> bool:
    """Return whether `If-None-Match` names the state `tag`; `*` names any."""
    if if_none_match is None:
        return False
    tags = {each.removeprefix("W/") for each in _tags(if_none_match)}
    return "*" in tags or tag in tags


def _check_match(if_match: str | None, tag: str | None, subject: str) -> None:
    if if_match is None:
        return
    if tag is None:
        raise Refusal(
            Code.PRECONDITION_FAILED, f"header If-Match: the {subject} does not exist; omit the header"
        )
    tags = _tags(if_match)
    if "*" not in tags and tag not in tags:
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-Match: the {subject} was changed since then, its ETag is {tag}; "
            "read it again, then repeat the change",
        )


def _check_none_match(if_none_match: str | None, tag: str | None, subject: str) -> None:
    if tag is not None and is_unchanged(if_none_match, tag):
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-None-Match: the {subject} exists; omit the header to replace it",
        )


def _tags(header: str) -> set[str]:
    return {tag.strip() for tag in header.split(",")}
