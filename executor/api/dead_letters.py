"""The routes of dead letters: list, show, send again, throw away."""

from base64 import b64encode
from codecs import getincrementaldecoder
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
from pydantic_core import to_jsonable_python

from common.domain.errors import Code, Refusal
from common.requests import read_model
from executor.api.bodies import read_value
from executor.api.paging import Page, Paging, cursor_of, places_of
from executor.api.problems import documented
from executor.api.requested import requested_body
from executor.dead_letters import LETTERS_MAX, DeadLetters, Dealt, Letter, Selection

_CURSOR = "dead-letters"
Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
NamePath = Annotated[str, Path(max_length=255, description="The letter's id or fingerprint.")]


class DeadLetterShape(BaseModel):
    """A message that nobody could use."""

    id: str = Field(description="Its message id; its fingerprint where it has none, or not for itself.")
    fingerprint: str = Field(description="Names it too, and goes on doing so when other letters are gone.")
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
    routing_key: str
    original_routing_key: str = Field(description="Under which it would be sent again.")
    published_at: AwareDatetime | None
    died_at: AwareDatetime | None
    tries: int = Field(description="How often it had come back from a delay queue.")
    headers: dict[str, JsonValue]
    body: str = Field(description="Or its beginning: 1 KiB in lists, 1 MiB alone.")
    body_encoding: Literal["text", "base64"]
    body_bytes: int = Field(description="Of the whole body.")


_SAME: Final = set(DeadLetterShape.model_fields) - {"headers", "body", "body_encoding"}


class DeadLetterPage(Page[DeadLetterShape]):
    """Some of the letters, the oldest deaths first."""

    total: int = Field(description=f"Letters there are, of any code; the oldest {LETTERS_MAX} can be seen.")


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


class RefusedLetter(BaseModel):
    """A letter that stays."""

    id: str
    reason: str


class DealtShape(BaseModel):
    """What became of the letters that were meant."""

    done: int = Field(description="Letters that are gone from here, copies included.")
    refused: list[RefusedLetter] = Field(description="Letters that nobody took and that stay.")
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
        description="A look holds all letters for a moment and gives them back; looks wait for each other.",
        responses=documented(Code.UNKNOWN_FIELD),
    )
    async def get_dead_letters(asked: Annotated[DeadLetterListing, Query()]) -> DeadLetterPage:
        after = None if asked.cursor is None else places_of(_CURSOR, asked.cursor, count=1)[0]
        page = await dead_letters.page(code=asked.code, after=after, limit=asked.limit)
        if page is None:
            raise Refusal(Code.INVALID_MESSAGE, "cursor: the letter that it stands for is gone; start again")
        last = page.letters[-1].fingerprint if page.rest else None
        return DeadLetterPage(
            items=[_shown(letter) for letter in page.letters],
            next_cursor=None if last is None else cursor_of(_CURSOR, last),
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
        summary="Send letters again, the oldest first",
        description="Under their first routing keys, as they first came. A letter is gone once the broker "
        "has confirmed the message; what no queue takes stays, and says so. What is still wrong dies again.",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("DeadLetterSelection"),
    )
    async def post_replay(request: Request) -> DealtShape:
        asked = await _asked(request)
        return _dealt(await dead_letters.replay(asked.selection(), limit=asked.limit))

    @routes.post(
        "/purge",
        summary="Throw letters away, the oldest first",
        responses=documented(Code.UNKNOWN_FIELD, Code.TOO_LARGE),
        openapi_extra=requested_body("DeadLetterSelection"),
    )
    async def post_purge(request: Request) -> DealtShape:
        asked = await _asked(request)
        return _dealt(await dead_letters.purge(asked.selection(), limit=asked.limit))


async def _asked(request: Request) -> DeadLetterSelection:
    return read_model(DeadLetterSelection, await read_value(request, bytes_max=1024 * 1024))


def _dealt(dealt: Dealt) -> DealtShape:
    return DealtShape(
        done=dealt.done,
        refused=[RefusedLetter(id=letter.id, reason=reason) for letter, reason in dealt.refused],
        missing=dealt.missing,
        left=dealt.left,
    )


def _shown(letter: Letter) -> DeadLetterShape:
    is_whole, encoding = len(letter.body) == letter.body_bytes, "text"
    try:
        # What was cut in the middle of a character is text all the same.
        body = getincrementaldecoder("utf-8")().decode(letter.body, final=is_whole)
    except UnicodeDecodeError:
        body, encoding = b64encode(letter.body).decode(), "base64"
    # Headers may hold anything that AMQP knows.
    headers = to_jsonable_python(
        dict(letter.headers), fallback=str, bytes_mode="base64", inf_nan_mode="strings"
    )
    return DeadLetterShape.model_validate(
        {
            **{name: getattr(letter, name) for name in _SAME},
            "headers": headers,
            "body": body,
            "body_encoding": encoding,
        }
    )
