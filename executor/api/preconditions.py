"""Conditional requests on actions (RFC 9110, section 13): who changes one may say which state it has seen.

In: the headers `If-Match` and `If-None-Match`, and an action as it is stored. Out: its `ETag`, a refusal, or
the word that nothing is new. Next: `definitions` checks under the same lock that it writes under.
"""

import hashlib
from typing import Annotated, Final

from fastapi import Header

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.reading import ActionShape

_DIGEST_BYTES: Final = 12

IfMatch = Annotated[
    str | None,
    Header(
        description="An `ETag`, as it came: the change is made only if the action is still that one. `*`: "
        "only if there is one.",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(description="An `ETag`, as it came: 304 without a body while the action is that one.")
]
ETAG_HEADER: Final = {
    "ETag": {
        "description": "Names this state of the action; for If-Match and If-None-Match.",
        "schema": {"type": "string"},
        "example": '"4f1d2c9ab0e83d55c1a7f6e2"',
    }
}


def etag_of(action: ActionShape) -> str:
    """Return what names this state of an action: it changes with every change."""
    digest = hashlib.blake2b(action.model_dump_json().encode(), digest_size=_DIGEST_BYTES)
    return f'"{digest.hexdigest()}"'


def check_match(if_match: str | None, action: ActionShape | None) -> None:
    """Raise Refusal unless the action is one that `If-Match` names."""
    if if_match is None:
        return
    if action is None:
        raise Refusal(
            Code.PRECONDITION_FAILED, "header If-Match: there is no such action; leave the header out"
        )
    tags = _tags(if_match)
    if "*" not in tags and etag_of(action) not in tags:
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-Match: the action was changed meanwhile, it is {etag_of(action)} now; "
            "read it again, then repeat the change",
        )


def check_none_match(if_none_match: str | None, action: ActionShape | None) -> None:
    """Raise Refusal where `If-None-Match` names the action that is there; `*`: where there is one at all."""
    if action is not None and is_unchanged(if_none_match, action):
        raise Refusal(
            Code.PRECONDITION_FAILED,
            f"header If-None-Match: there is an action {action.ref!r}; leave the header out to replace it",
        )


def is_unchanged(if_none_match: str | None, action: ActionShape) -> bool:
    """Tell whether `If-None-Match` names this state of the action."""
    if if_none_match is None:
        return False
    tags = {tag.removeprefix("W/") for tag in _tags(if_none_match)}
    return "*" in tags or etag_of(action) in tags


def _tags(header: str) -> set[str]:
    return {tag.strip() for tag in header.split(",")}
