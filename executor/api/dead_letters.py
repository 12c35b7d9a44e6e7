"""The routes of dead letters: list, show, replay (with another body if given), purge."""

from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal, Self

from fastapi import Path, Query
from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from turnstile.common.domain.errors import Code, Refusal
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import LIST_BYTES_MAX, JsonBody
from turnstile.executor.api.paging import Page, Paging, cursor_of, cursor_parts, invalid_cursor
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.dead_letters.message import StoredDeadLetter
from turnstile.executor.dead_letters.store import (
    DeadLetterResult,
    Position,
    Selection,
)

LETTERS_MAX: Final = 10_000
"""Most dead letters of one replay or purge."""
_CURSOR: Final = "dead-letters"
_LISTED: Final = "GET /dead-letters and 'executor dead-letters list' show those that there are"
_BODY_CHARS_MAX: Final = 6 * 1024 * 1024
Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
NamePath = Annotated[
    str, Path(max_length=255, description="The dead letter's id, fingerprint or message id.")
]


class DeadLetterDetail(BaseModel):
    """A message that no service could handle."""

    id: str = Field(description="A number.", examples=["42"])
    fingerprint: str = Field(
        description="A hash of the message and of when and why it was dead-lettered; identifies it too."
    )
    code: str = Field(
        description="Why it was dead-lettered: a code of this API, or the reason of the broker: rejected, "
        "expired, ...",
        examples=["unknown_action"],
    )
    error: str
    type: str | None
    message_id: str | None
    correlation_id: str | None
    app_id: str | None
    content_type: str | None
    reply_to: str | None
    exchange: str = Field(description="The exchange that it came from.")
    routing_key: str
    original_routing_key: str = Field(description="A replay publishes it with this key.")
    published_at: AwareDatetime | None
    died_at: AwareDatetime = Field(description="When it was dead-lettered; if unknown, when it was stored.")
    stored_at: AwareDatetime
    tries: int = Field(description="How often it was redelivered from a delay queue.")
    headers: dict[str, JsonValue] = Field(
        description='At most 64 KiB. A value that is too large or cannot be stored is {"cut": ..., "bytes": '
        "...}; a replay omits it."
    )
    body: str = Field(description="The body or its beginning: 1 KiB in lists, 1 MiB alone.")
    body_encoding: Literal["text", "base64"]
    body_bytes: int = Field(description="Of the whole body.")
    body_truncated: bool = Field(
        description="Only its first 64 KiB are stored, as it is larger than any accepted body: a replay "
        "needs another body."
    )


_SAME: Final = set(DeadLetterDetail.model_fields) - {"id", "body", "body_encoding"}


class DeadLetterPage(Page[DeadLetterDetail]):
    """A page of dead letters."""

    total: int = Field(description="All dead letters, of any code.")


class DeadLetterListing(Paging):
    """Which dead letters to list."""

    code: Name | None = Field(default=None, description="Only those with this code.")
    order: Literal["oldest", "newest"] = Field(default="oldest", description="Which come first.")


class DeadLetterSelection(JsonBody):
    """Which dead letters to change: exactly one of `ids`, `code` and `all`."""

    bytes_max: ClassVar[int] = 1024 * 1024

    ids: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = None
    code: Name | None = None
    all: Literal[True] | None = None
    limit: int = Field(
        default=LETTERS_MAX, ge=1, le=LETTERS_MAX, description="Most dead letters in one call."
    )
    dry_run: bool = Field(
        default=False,
        description="Publish and delete nothing. `left` is then the number of all matching dead letters.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(part is not None for part in (self.ids, self.code, self.all)) != 1:
            raise ValueError("give exactly one of ids, code and all")
        return self

    def selection(self) -> Selection:
        """Return the selection."""
        return Selection(names=tuple(self.ids or ()), code=self.code, all=bool(self.all))


class DeadLetterPurge(DeadLetterSelection):
    """Which dead letters to purge."""


class DeadLetterReplay(DeadLetterSelection):
    """Which dead letters to replay; a single one may get another body."""

    bytes_max: ClassVar[int] = LIST_BYTES_MAX

    body: Annotated[str, Field(max_length=_BODY_CHARS_MAX)] | None = Field(
        default=None, description="Published in place of the body of the only dead letter in `ids`."
    )
    body_encoding: Literal["text", "base64"] = "text"

    @model_validator(mode="after")
    def _edits_one(self) -> Self:
        if self.body is not None and len(self.ids or ()) != 1:
            raise ValueError("a body is for a single dead letter: give only its id in ids")
        self.edited()
        return self

    def edited(self) -> bytes | None:
        """Return the other body, or None."""
        if self.body is None:
            return None
        if self.body_encoding == "text":
            return self.body.encode()
        try:
            return b64decode(self.body, validate=True)
        except ValueError as error:
            raise ValueError(f"body: not base64: {error}") from None


class RefusedLetter(BaseModel):
    """A dead letter that was not replayed or purged."""

    id: str
    reason: str


class DeadLetterReport(BaseModel):
    """The result of a replay or purge."""

    done: int = Field(description="Letters that were replayed or purged, and deleted.")
    refused: list[RefusedLetter] = Field(description="Letters that were not, and why.")
    missing: list[str] = Field(description="Names that match no dead letter.")
    left: int = Field(description="Matching dead letters that are left: repeat the call.")


routes = ApiRoutes(prefix="/dead-letters", tag="operation")


@routes.get(
    "",
    summary="List dead letters, oldest or newest first",
    description="A dead letter appears once an executor has drained it from the broker.",
)
async def get_dead_letters(parts: Parts, query: Annotated[DeadLetterListing, Query()]) -> DeadLetterPage:
    after = None if query.cursor is None else _position(query.cursor)
    page = await parts.dead_letters.page(
        code=query.code, after=after, limit=query.limit, newest_first=query.order == "newest"
    )
    last = page.letters[-1] if page.rest else None
    return DeadLetterPage(
        items=[_shown(letter) for letter in page.letters],
        next_cursor=None if last is None else cursor_of(_CURSOR, last.died_at.isoformat(), last.id),
        total=page.total,
    )


@routes.get("/{name}", summary="Read one dead letter", responses=documented(Code.NOT_FOUND))
async def get_dead_letter(parts: Parts, name: NamePath) -> DeadLetterDetail:
    letter = await parts.dead_letters.read(name)
    if letter is None:
        raise Refusal(Code.NOT_FOUND, f"id: there is no dead letter {name!r}; {_LISTED}")
    return _shown(letter)


@routes.post(
    "/replay",
    summary="Replay dead letters, oldest first",
    description="Publishes them with their original routing keys, unchanged or, a single one, with "
    "another body. A dead letter is deleted once the broker has confirmed the message; one that no queue "
    "accepts stays, with the reason. An invalid message is dead-lettered again under a new id. The "
    "message id stays the same: a request that is replayed twice is one execution.",
    responses=documented(Code.TOO_LARGE),
)
async def post_replay(parts: Parts, body: DeadLetterReplay, caller: CurrentCaller) -> DeadLetterReport:
    if body.dry_run:
        return _report(await parts.dead_letters.planned(body.selection(), limit=body.limit))
    return _report(
        await parts.dead_letters.replay(
            body.selection(), limit=body.limit, changed_by=caller, body=body.edited()
        )
    )


@routes.post(
    "/purge",
    summary="Purge dead letters, oldest first",
    responses=documented(Code.TOO_LARGE),
)
async def post_purge(parts: Parts, body: DeadLetterPurge, caller: CurrentCaller) -> DeadLetterReport:
    if body.dry_run:
        return _report(await parts.dead_letters.planned(body.selection(), limit=body.limit))
    return _report(await parts.dead_letters.purge(body.selection(), limit=body.limit, changed_by=caller))


def _position(cursor: str) -> Position:
    died_at, letter_id = cursor_parts(_CURSOR, cursor, count=2)
    try:
        position = Position(died_at=datetime.fromisoformat(died_at), id=int(letter_id))
    except ValueError:
        raise invalid_cursor() from None
    if position.died_at.tzinfo is None or not 0 < position.id < 2**63:
        raise invalid_cursor()
    return position


def _report(result: DeadLetterResult) -> DeadLetterReport:
    return DeadLetterReport(
        done=result.done,
        refused=[RefusedLetter(id=str(letter.id), reason=reason) for letter, reason in result.refused],
        missing=result.missing,
        left=result.left,
    )


def _shown(letter: StoredDeadLetter) -> DeadLetterDetail:
    is_whole, encoding = len(letter.body) == letter.body_bytes, "text"
    try:
        # A body that was cut inside a character is still text.
        body = getincrementaldecoder("utf-8")().decode(letter.body, final=is_whole)
    except UnicodeDecodeError:
        body, encoding = b64encode(letter.body).decode(), "base64"
    return DeadLetterDetail.model_validate(
        {
            **{name: getattr(letter, name) for name in _SAME},
            "id": str(letter.id),
            "body": body,
            "body_encoding": encoding,
        }
    )
