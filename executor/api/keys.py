"""The routes of single concurrency keys: a limit and a weight in place of those of their action.

Who changed what is stored with the changes of the action.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

from fastapi import Body, Depends, Path
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.actions import PossibleRef
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import DefinitionFields
from turnstile.executor.api.definition_routes import decided
from turnstile.executor.api.paging import Page, PageQuery, cursor_name, next_cursor
from turnstile.executor.api.parts import ApiParts, Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import KeySettings, key_columns
from turnstile.executor.leader.commands import unknown, without_settings
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.queries.schemas import StoredKey

_CURSOR: Final = "keys"
_KEY_CHARS_MAX: Final = 512
_ONE: Final = "/{ref}/keys/{key:text}"


class KeyFields(DefinitionFields):
    """Settings of a key. The path names the key."""

    definition = KeySettings

    @classmethod
    def __get_pydantic_json_schema__(cls, own: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**super().__get_pydantic_json_schema__(own, handler), "minProperties": 1}


class KeyDeleted(BaseModel):
    """The key has the limit of its action again."""

    action_ref: str = Field(examples=["reports.render"])
    concurrency_key: str = Field(examples=["7"])


async def _possible_key(
    key: Annotated[str, Path(description="The concurrency key, percent-encoded.", examples=["7"])],
) -> str:
    if not 1 <= len(key) <= _KEY_CHARS_MAX or "\0" in key:
        raise Refusal(
            Code.INVALID_MESSAGE,
            f"key: expected 1 to {_KEY_CHARS_MAX} characters without U+0000, percent-encoded in the path",
        )
    return key


PossibleKey = Annotated[str, Depends(_possible_key)]
_EXAMPLES: Final[dict[str, Example]] = {
    "limit": {"summary": "Five at once for this customer", "value": {"max_concurrent": 5}},
    "weight": {"summary": "Twice the share of other customers", "value": {"weight": 2}},
}
GivenFields = Annotated[KeyFields, Body(openapi_examples=_EXAMPLES)]


routes = ApiRoutes(prefix="/actions", tag="actions")


@routes.get(
    "/{ref}/keys",
    summary="List the concurrency keys that have settings of their own",
    responses=documented(Code.NOT_FOUND),
)
async def get_keys(parts: Parts, ref: PossibleRef, query: PageQuery) -> Page[StoredKey]:
    after = cursor_name(_CURSOR, query.cursor)
    after_key = None if after is None else unquote(after)
    items, last = await parts.definitions.keys(ref, after_key=after_key, limit=query.limit)
    if not items and await parts.definitions.action(ref) is None:
        raise unknown("action", ref)
    return Page(items=items, next_cursor=next_cursor(_CURSOR, None if last is None else quote(last)))


@routes.get(_ONE, summary="Read the settings of one concurrency key", responses=documented(Code.NOT_FOUND))
async def get_key(parts: Parts, ref: PossibleRef, key: PossibleKey) -> StoredKey:
    return await _stored(parts, ref, key)


@routes.put(
    _ONE,
    summary="Give one concurrency key its own limit or weight; the limit takes effect at once",
    responses=documented(Code.NOT_FOUND, Code.TOO_LARGE),
)
async def put_key(
    parts: Parts, ref: PossibleRef, key: PossibleKey, fields: GivenFields, caller: CurrentCaller
) -> StoredKey:
    settings = key_columns(read_model(KeySettings, fields.given))
    await _decide(parts, ref, key, {"action_ref": ref, "key": key, **settings}, caller)
    return await _stored(parts, ref, key)


@routes.delete(
    _ONE,
    summary="Delete the settings of one concurrency key: it has the limit of its action again",
    responses=documented(Code.NOT_FOUND),
)
async def delete_key(parts: Parts, ref: PossibleRef, key: PossibleKey, caller: CurrentCaller) -> KeyDeleted:
    await _decide(parts, ref, key, None, caller)
    return KeyDeleted(action_ref=ref, concurrency_key=key)


async def _stored(parts: ApiParts, ref: str, key: str) -> StoredKey:
    found = await parts.definitions.key(ref, key)
    if found is not None:
        return found
    is_unknown = await parts.definitions.action(ref) is None
    raise unknown("action", ref) if is_unknown else without_settings(ref, key)


async def _decide(
    parts: ApiParts, ref: str, key: str, settings: Mapping[str, object] | None, caller: Caller
) -> None:
    command = DefinitionCommand(
        kind="key", name=f"{ref}/{key}", definition=settings, changed_by=caller._asdict()
    )
    await decided(parts.inbox, command)
