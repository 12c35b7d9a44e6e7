"""The family of routes of definitions: list, read, change under conditions, pause, history.

In: a `DefinitionKind`, which says how its definitions are named, read and described. Out: its routes; what
they return has its `ETag`. A change is a command: durable at once, merged, checked, compared with the
conditions of its request (RFC 9110, section 13) and recorded in one turn of the leader, so changes of one
definition over all executors undo none of each other.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

from fastapi import Body, Depends, Header, Path, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CallerScope, CurrentCaller
from turnstile.executor.api.bodies import DefinitionFields
from turnstile.executor.api.paging import (
    Page,
    PageQuery,
    cursor_id,
    cursor_name,
    next_cursor,
    next_offset,
    page_before,
)
from turnstile.executor.api.parts import ApiParts, Parts
from turnstile.executor.api.problems import ApiRoutes, Refused, documented
from turnstile.executor.callers import Caller
from turnstile.executor.inbox import Answer, Inbox, refusal_of
from turnstile.executor.leader.commands import body_of, unknown
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.queries.definition_reader import DefinitionReader, Tagged
from turnstile.executor.queries.queue_reader import QueueReader
from turnstile.executor.queries.schemas import ChangeEntry, PoolQueuePage, ResourceQueuePage

Stored = TypeVar("Stored", bound=BaseModel)
QueuePage = TypeVar("QueuePage", PoolQueuePage, ResourceQueuePage)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Any]])
Kind = Literal["action", "resource", "pool", "schedule"]

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
IfNew = Annotated[
    str | None,
    Header(
        description="`*`: the definition is stored only if there is none. An `ETag`: only if it has another."
    ),
]
_TAGGED: Final[dict[int | str, dict[str, Any]]] = {
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
_PUT: Final = {**_TAGGED, **documented(Code.TOO_LARGE, Code.PRECONDITION_FAILED)}
_PATCHED: Final = {**_PUT, **documented(Code.NOT_FOUND)}
_SWITCHED: Final = {**_TAGGED, **documented(Code.NOT_FOUND, Code.PRECONDITION_FAILED)}


async def decided(inbox: Inbox, command: DefinitionCommand) -> Answer:
    """Have a change decided. Raises Refusal and Unavailable."""
    async with answer_deadline():
        (answer,) = await inbox.decide([command])
    if (refusal := refusal_of(answer)) is not None:
        details = {name: value for name, value in answer.items() if name not in ("type", "code", "message")}
        raise Refused(refusal.code, refusal.message, **details)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the OpenAPI document says about the routes of a kind, where their kinds differ."""

    all: str
    read: str
    put: str
    patch: str
    pause: str
    changes: str
    more: Mapping[Literal["read", "patch"], str] = field(default_factory=dict)
    """Descriptions below the summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionKind(Generic[Stored]):
    """One kind of definition: its names, how it is read, and what is stored of it."""

    name: Kind
    noun: str
    """With its article."""
    named_by: Literal["ref", "name"]
    """Its field with the name, which is also the parameter of the path."""
    check: Callable[[str], object]
    """Raises ValueError for a name that none can have."""
    example: str
    fields: type[DefinitionFields]
    examples: Mapping[str, Example]
    stored: type[Stored]
    page: type[BaseModel]
    find: Callable[[DefinitionReader, str], Awaitable[Tagged[Stored] | None]]
    list_after: Callable[
        [DefinitionReader, str | None, int, Sequence[str] | None],
        Awaitable[tuple[Sequence[BaseModel], str | None]],
    ]
    """After a name, at most as many, and of the caller's scope."""
    texts: Texts

    @property
    def path(self) -> str:
        """The path of one definition."""
        return f"/{{{self.named_by}}}"

    @property
    def path_parameter(self) -> Any:
        """The parameter of the path."""
        return Path(alias=self.named_by, description=f"The {self.name}'s name.", examples=[self.example])

    @property
    def existing(self) -> Any:
        """The parameter of the path, where a name that none can have is answered with 404."""

        async def possible_name(name: Annotated[str, self.path_parameter]) -> str:
            try:
                self.check(name)
            except ValueError:
                raise unknown(self.name, name) from None
            return name

        return Depends(possible_name)

    async def read(self, parts: ApiParts, name: str, response: Response) -> Stored:
        """Return what is stored under a name, with its `ETag`; raises Refusal if nothing is."""
        found = await self.find(parts.definitions, name)
        if found is None:
            raise unknown(self.name, name)
        response.headers["ETag"] = found.tag
        return found.stored

    def check_name(self, name: str, given: Mapping[str, Any], sentence: str) -> None:
        """Raise Refusal if the fields of a request have another name than its path."""
        if given.get(self.named_by, name) != name:
            raise Refusal(Code.INVALID_MESSAGE, f"{self.named_by}: {sentence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChange:
    """A change as its request asks for it: by whom, and of which state; None: of any."""

    parts: ApiParts
    changed_by: Caller
    if_match: str | None

    async def decide(
        self, kind: Kind, name: str, definition: Mapping[str, Any] | None, **more: Any
    ) -> Answer:
        """Have it decided. Raises Refusal and Unavailable."""
        command = DefinitionCommand(
            kind=kind, name=name, definition=definition, if_match=self.if_match,
            changed_by=self.changed_by._asdict(), **more,
        )  # fmt: skip
        return await decided(self.parts.inbox, command)


async def _change(parts: Parts, who: CurrentCaller, if_match: IfMatch = None) -> RequestedChange:
    return RequestedChange(parts=parts, changed_by=who, if_match=if_match)


Change: TypeAlias = Annotated[RequestedChange, Depends(_change)]


def add_definition_routes(routes: ApiRoutes, kind: DefinitionKind[Stored]) -> None:
    """Add the routes that all kinds have."""
    _add_reading_routes(routes, kind)
    _add_history_route(routes, kind)
    _add_putting_routes(routes, kind)
    _add_switching_routes(routes, kind)


def _add_reading_routes(routes: ApiRoutes, kind: DefinitionKind[Stored]) -> None:
    texts = kind.texts

    @routes.get("", summary=texts.all, name=f"get_{kind.name}s", response_model=kind.page)
    async def get_all(parts: Parts, query: PageQuery, scope: CallerScope) -> Any:
        cursors = f"{kind.name}s"
        items, last = await kind.list_after(
            parts.definitions, cursor_name(cursors, query.cursor), query.limit, scope
        )
        return {"items": items, "next_cursor": next_cursor(cursors, last)}

    @routes.get(
        kind.path,
        summary=texts.read,
        description=texts.more.get("read"),
        name=f"get_{kind.name}",
        responses={
            **_TAGGED,
            304: {"description": f"The {kind.name} still has the `ETag` of `If-None-Match`"},
            **documented(Code.NOT_FOUND),
        },
        response_model=kind.stored,
    )
    async def get_one(
        parts: Parts,
        name: Annotated[str, kind.existing],
        response: Response,
        if_none_match: IfNoneMatch = None,
    ) -> Any:
        stored = await kind.read(parts, name, response)
        tag = response.headers["ETag"]
        if _is_unchanged(if_none_match, tag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return stored


def _add_history_route(routes: ApiRoutes, kind: DefinitionKind[Stored]) -> None:
    @routes.get(
        f"{kind.path}/changes",
        summary=f"List changes of {kind.noun}, newest first",
        description=kind.texts.changes,
        responses=documented(Code.NOT_FOUND),
    )
    async def get_changes(
        parts: Parts, name: Annotated[str, kind.existing], query: PageQuery
    ) -> Page[ChangeEntry]:
        reader = parts.definitions

        async def read(before_id: int, limit: int) -> tuple[Sequence[ChangeEntry], int | None]:
            items, last = await reader.changes(kind.name, name, before_id=before_id, limit=limit)
            if not items and query.cursor is None and await kind.find(reader, name) is None:
                raise unknown(kind.name, name)
            return items, last

        return await page_before(f"{kind.name}-changes", query, read)


def _add_putting_routes(routes: ApiRoutes, kind: DefinitionKind[Stored]) -> None:
    texts = kind.texts

    @routes.put(
        kind.path, summary=texts.put, name=f"put_{kind.name}", responses=_PUT, response_model=kind.stored
    )
    @_with_fields_of(kind)
    async def put_one(
        name: Annotated[str, kind.path_parameter],
        fields: DefinitionFields,
        change: Change,
        response: Response,
        if_none_match: IfNew = None,
    ) -> Stored:
        given = fields.given
        kind.check_name(name, given, f"differs from the path; omit it, or send {name!r}")
        # Absent fields get their defaults.
        definition = read_model(kind.fields.definition, {**given, kind.named_by: name})
        await change.decide(kind.name, name, body_of(definition), if_none_match=if_none_match)
        return await kind.read(change.parts, name, response)

    @routes.patch(
        kind.path,
        summary=texts.patch,
        description=texts.more.get("patch"),
        name=f"patch_{kind.name}",
        responses=_PATCHED,
        response_model=kind.stored,
    )
    @_with_fields_of(kind)
    async def patch_one(
        name: Annotated[str, kind.existing], fields: DefinitionFields, change: Change, response: Response
    ) -> Stored:
        kind.check_name(name, fields.given, f"the name of {kind.noun} never changes; omit it")
        await change.decide(kind.name, name, fields.given, is_patch=True)
        return await kind.read(change.parts, name, response)


def _with_fields_of(kind: DefinitionKind[Stored]) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator for a route with a body: the framework reads its model from the annotation."""

    def annotated(endpoint: Endpoint) -> Endpoint:
        body = Body(openapi_examples=dict(kind.examples))
        endpoint.__annotations__["fields"] = Annotated[kind.fields, body]
        return endpoint

    return annotated


def _add_switching_routes(routes: ApiRoutes, kind: DefinitionKind[Stored]) -> None:
    def add(verb: str, summary: str, *, paused: bool) -> None:
        @routes.post(
            f"{kind.path}/{verb}",
            summary=summary,
            name=f"post_{verb}",
            responses=_SWITCHED,
            response_model=kind.stored,
        )
        async def post_switch(
            name: Annotated[str, kind.existing], change: Change, response: Response
        ) -> Stored:
            await change.decide(kind.name, name, {"paused": paused}, is_patch=True)
            return await kind.read(change.parts, name, response)

    add("pause", kind.texts.pause, paused=True)
    add("resume", f"Resume {kind.noun}", paused=False)


def add_queue_route(
    routes: ApiRoutes,
    kind: DefinitionKind[Stored],
    model: type[QueuePage],
    read: Callable[[QueueReader, str, int, int], Awaitable[QueuePage | None]],
    *,
    summary: str,
    description: str,
) -> None:
    """Add what waits at a resource or pool, and what holds it; its pages are read by position."""

    @routes.get(
        "/{name}/queue",
        summary=summary,
        description=description,
        name=f"get_{kind.name}_queue",
        responses=documented(Code.NOT_FOUND),
        response_model=model,
    )
    async def get_queue(parts: Parts, name: Annotated[str, kind.existing], query: PageQuery) -> QueuePage:
        cursors = f"{kind.name}-queue"
        offset = cursor_id(cursors, query.cursor, first=0)
        page = await read(parts.queues, name, offset, query.limit)
        if page is None:
            raise unknown(kind.name, name)
        cursor = next_offset(cursors, offset, limit=query.limit, total=page.waiting)
        return page.model_copy(update={"next_cursor": cursor})


def _is_unchanged(if_none_match: str | None, tag: str) -> bool:
    """Return whether `If-None-Match` names the state `tag`; `*` names any."""
    if if_none_match is None:
        return False
    tags = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in tags or tag in tags
