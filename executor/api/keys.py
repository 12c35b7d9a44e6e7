"""The routes of single concurrency keys: a limit and a weight in place of those of their action.

Who changed what is stored with the changes of the action.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.openapi.models import Example
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.actions import PossibleRef
from turnstile.executor.api.auth import CurrentCaller
from turnstile.executor.api.bodies import DefinitionFields, JsonRoute
from turnstile.executor.api.definition_routes import decided
from turnstile.executor.api.paging import Page, Paging, cursor_name, next_cursor
from turnstile.executor.api.problems import documented
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import KeySettings, key_columns
from turnstile.executor.inbox import Inbox
from turnstile.executor.leader.commands import unknown
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.schemas import StoredKey

_CURSOR: Final = "keys"
_KEY_CHARS_MAX: Final = 512


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


def key_routes(inbox: Inbox, reader: DefinitionReader) -> APIRouter:
    """Return the routes of the concurrency keys of actions."""
    routes = APIRouter(prefix="/actions", tags=["actions"], route_class=JsonRoute)
    _add_reading_routes(routes, reader)
    _add_changing_routes(routes, inbox, reader)
    return routes


def _add_reading_routes(routes: APIRouter, reader: DefinitionReader) -> None:
    @routes.get(
        "/{ref}/keys",
        summary="List the concurrency keys that have settings of their own",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD),
    )
    async def get_keys(ref: PossibleRef, query: Annotated[Paging, Query()]) -> Page[StoredKey]:
        after = cursor_name(_CURSOR, query.cursor)
        after_key = None if after is None else unquote(after)
        items, last = await reader.keys(ref, after_key=after_key, limit=query.limit)
        if not items and await reader.action(ref) is None:
            raise unknown("action", ref)
        return Page(items=items, next_cursor=next_cursor(_CURSOR, None if last is None else quote(last)))

    @routes.get(
        "/{ref}/keys/{key:text}",
        summary="Read the settings of one concurrency key",
        responses=documented(Code.NOT_FOUND),
    )
    async def get_key(ref: PossibleRef, key: PossibleKey) -> StoredKey:
        found = await reader.key(ref, key)
        if found is None:
            raise unknown("action", ref) if await reader.action(ref) is None else _no_settings(ref, key)
        return found


def _add_changing_routes(routes: APIRouter, inbox: Inbox, reader: DefinitionReader) -> None:
    @routes.put(
        "/{ref}/keys/{key:text}",
        summary="Give one concurrency key its own limit or weight; the limit takes effect at once",
        responses=documented(Code.NOT_FOUND, Code.UNKNOWN_FIELD, Code.TOO_LARGE),
    )
    async def put_key(
        ref: PossibleRef, key: PossibleKey, fields: GivenFields, caller: CurrentCaller
    ) -> StoredKey:
        settings = key_columns(read_model(KeySettings, fields.given))
        await decided(inbox, _command(ref, key, {"action_ref": ref, "key": key, **settings}, caller))
        found = await reader.key(ref, key)
        if found is None:
            raise _no_settings(ref, key)
        return found

    @routes.delete(
        "/{ref}/keys/{key:text}",
        summary="Delete the settings of one concurrency key: it has the limit of its action again",
        responses=documented(Code.NOT_FOUND),
    )
    async def delete_key(ref: PossibleRef, key: PossibleKey, caller: CurrentCaller) -> KeyDeleted:
        await decided(inbox, _command(ref, key, None, caller))
        return KeyDeleted(action_ref=ref, concurrency_key=key)


def _command(
    ref: str, key: str, definition: Mapping[str, object] | None, caller: Caller
) -> DefinitionCommand:
    return DefinitionCommand(
        kind="key", name=f"{ref}/{key}", definition=definition, changed_by=caller._asdict()
    )


def _no_settings(ref: str, key: str) -> Refusal:
    return Refusal(
        Code.NOT_FOUND,
        f"key: {key[:200]!r} of {ref!r} has no settings of its own, the limit of the action holds; "
        "PUT it to give it a limit or weight",
    )
