"""The routes of dead letters: list, show, replay (with another body, if wanted), purge."""

from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from datetime import datetime
from typing import Annotated, Final, Literal, Self

from fastapi import APIRouter, Path, Query, Request
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.bodies import LIST_BYTES_MAX, read_value
from turnstile.executor.api.paging import Page, Paging, cursor_of, foreign_cursor, places_of
from turnstile.executor.api.problems import documented
from turnstile.executor.api.requested import requested_body
from turnstile.executor.dead_letters import DeadLetters, Dealt, Place, Selection, StoredLetter

LETTERS_MAX: Final = 10_000
"""Most letters of one replay or purge."""
_CURSOR: Final = "dead-letters"
_BODY_CHARS_MAX: Final = 6 * 1024 * 1024
Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
NamePath = Annotated[str, Path(max_length=255, description="The letter's id, fingerprint or message id.")]


class DeadLetterShape(BaseModel):
    """A message that no service could use."""

    id: str = Field(description="A number of its own.", examples=["42"])
    fingerprint: str = Field(description="A hash of the message and of its death; names it too.")
    code: str = Field(
        description="Why it died: a code of this API, or a word of the broker's: rejected, expired, ...",
        examples=["unknown_action"],
    )
    error: str
    type: str | None
    message_id: str | None
    correlation_id: str | None
    app_id: str | None
    content_type: str | None
    reply_to: str | None
    exchange: str = Field(description="It came to the dead letters by this exchange.")
    routing_key: str
    original_routing_key: str = Field(description="A replay publishes it with this key.")
    published_at: AwareDatetime | None
    died_at: AwareDatetime = Field(description="When it was stored, where the message does not say.")
    stored_at: AwareDatetime
    tries: int = Field(description="How often it had come back from a delay queue.")
    headers: dict[str, JsonValue] = Field(
        description='At most 64 KiB. A value that is too large or cannot be stored is {"cut": ..., "bytes": '
        "...}; a replay leaves it out."
    )
    body: str = Field(description="Or its beginning: 1 KiB in lists, 1 MiB alone.")
    body_encoding: Literal["text", "base64"]
    body_bytes: int = Field(description="Of the whole body.")
    body_truncated: bool = Field(
        description="Only its first 64 KiB are stored, as it is larger than any that is taken: a replay "
        "needs another body."
    )


_SAME: Final = set(DeadLetterShape.model_fields) - {"id", "body", "body_encoding"}


class DeadLetterPage(Page[DeadLetterShape]):
    """Some of the letters, the oldest deaths first."""

    total: int = Field(description="Letters there are, of any code.")


class DeadLetterListing(Paging):
    """Which letters to list."""

    code: Name | None = Field(default=None, description="Only those that died of this.")


class DeadLetterSelection(BaseModel):
    """Which letters are meant: exactly one of `ids`, `code` and `all`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ids: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = None
    code: Name | None = None
    all: Literal[True] | None = None
    limit: int = Field(default=LETTERS_MAX, ge=1, le=LETTERS_MAX, description="Most letters at once.")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(part is not None for part in (self.ids, self.code, self.all)) != 1:
            raise ValueError("give exactly one of ids, code and all")
        return self

    def selection(self) -> Selection:
        """Return what is meant."""
        return Selection(names=tuple(self.ids or ()), code=self.code, all=bool(self.all))


class DeadLetterReplay(DeadLetterSelection):
    """Which letters to replay; one alone may be given another body."""

    body: Annotated[str, Field(max_length=_BODY_CHARS_MAX)] | None = Field(
        default=None, description="Published in place of the body of the one letter in `ids`."
    )
    body_encoding: Literal["text", "base64"] = "text"

    @model_validator(mode="after")
    def _edits_one(self) -> Self:
        if self.body is not None and len(self.ids or ()) != 1:
            raise ValueError("a body is for one letter: give its id alone in ids")
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
    """A letter that stays."""

    id: str
    reason: str


class DealtShape(BaseModel):
    """What became of the letters that were meant."""

    done: int = Field(description="Letters that are gone from here.")
    refused: list[RefusedLetter] = Field(description="Letters that stay, and why.")
    missing: list[str] = Field(description="Names that mean no letter.")
    left: int = Field(description="Letters that are meant too: ask again.")


def dead_letter_routes(dead_letters: DeadLetters) -> APIRouter:
    """Return the routes of dead letters."""
    routes = APIRouter(prefix="/dead-letters", tags=["operation"])
    _add_reading_routes(routes, dead_letters)
    _add_dealing_routes(routes, dead_letters)
    return routes


def _add_reading_routes(routes: APIRouter, dead_letters: DeadLetters) -> None:
    @routes.get(
        "",
        summary="List dead letters, the oldest first",
        description="As soon as an executor has drained them from the broker.",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_dead_letters(asked: Annotated[DeadLetterListing, Query()]) -> DeadLetterPage:
        after = None if asked.cursor is None else _place(asked.cursor)
        page = await dead_letters.page(code=asked.code, after=after, limit=asked.limit)
        last = page.letters[-1] if page.rest else None
        return DeadLetterPage(
            items=[_shown(letter) for letter in page.letters],
            next_cursor=None if last is None else cursor_of(_CURSOR, last.died_at.isoformat(), last.id),
            total=page.total,
        )

    @routes.get("/{name}", summary="Read one dead letter", responses=documented(Code.NOT_FOUND))
    async def get_dead_letter(name: NamePath) -> DeadLetterShape:
        letter = await dead_letters.read(name)
        if letter is None:
            raise Refusal(Code.NOT_FOUND, f"id: there is no dead letter {name!r}")
        return _shown(letter)


def _add_dealing_routes(routes: APIRouter, dead_letters: DeadLetters) -> None:
    @routes.post(
        "/replay",
        summary="Replay letters, the oldest first",
        description="Publishes them with their original routing keys, as they first came or, one alone, "
        "with another body. A letter is gone once the broker has confirmed the message; what no queue takes "
        "stays, and says so. What is still wrong dies again, as a letter of a new id. The message id stays "
        "the same: a request that is replayed twice is one execution.",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("DeadLetterReplay"),
    )
    async def post_replay(request: Request) -> DealtShape:
        asked = read_model(DeadLetterReplay, await read_value(request, bytes_max=LIST_BYTES_MAX))
        return _dealt(await dead_letters.replay(asked.selection(), limit=asked.limit, body=asked.edited()))

    @routes.post(
        "/purge",
        summary="Delete letters, the oldest first",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("DeadLetterSelection"),
    )
    async def post_purge(request: Request) -> DealtShape:
        asked = read_model(DeadLetterSelection, await read_value(request, bytes_max=1024 * 1024))
        return _dealt(await dead_letters.purge(asked.selection(), limit=asked.limit))


def _place(cursor: str) -> Place:
    died_at, letter_id = places_of(_CURSOR, cursor, count=2)
    try:
        place = Place(died_at=datetime.fromisoformat(died_at), id=int(letter_id))
    except ValueError:
        raise foreign_cursor() from None
    if place.died_at.tzinfo is None or not 0 < place.id < 2**63:
        raise foreign_cursor()
    return place


def _dealt(dealt: Dealt) -> DealtShape:
    return DealtShape(
        done=dealt.done,
        refused=[RefusedLetter(id=str(letter.id), reason=reason) for letter, reason in dealt.refused],
        missing=dealt.missing,
        left=dealt.left,
    )


def _shown(letter: StoredLetter) -> DeadLetterShape:
    is_whole, encoding = len(letter.body) == letter.body_bytes, "text"
    try:
        # What was cut in the middle of a character is text all the same.
        body = getincrementaldecoder("utf-8")().decode(letter.body, final=is_whole)
    except UnicodeDecodeError:
        body, encoding = b64encode(letter.body).decode(), "base64"
    return DeadLetterShape.model_validate(
        {
            **{name: getattr(letter, name) for name in _SAME},
            "id": str(letter.id),
            "body": body,
            "body_encoding": encoding,
        }
    )
