"""The routes of API tokens: create, list, revoke, and what the caller's own token permits."""

from typing import Annotated, Any, Final, cast

from fastapi import Body, Path, Request
from fastapi.openapi.models import Example
from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.fields import Duration
from turnstile.common.schemas import Schema
from turnstile.executor.api.answers import answer_deadline
from turnstile.executor.api.auth import CurrentCaller, refused_routes, templates, token_of
from turnstile.executor.api.bodies import JsonBody
from turnstile.executor.api.paging import ID_MAX, Page, PageQuery, page_before
from turnstile.executor.api.parts import Parts
from turnstile.executor.api.problems import ApiRoutes, documented
from turnstile.executor.api_tokens import ApiToken, Role
from turnstile.executor.queries.rows import page_of
from turnstile.executor.queries.schemas import CreatedToken, TokenDetail, TokenRole
from turnstile.executor.stored_tokens import TokenStore

_EXAMPLES: Final[dict[str, Example]] = {
    "submitter": {
        "summary": "Submits executions of the actions reports...., for 90 days",
        "value": {"name": "ci", "role": "submit", "scope": ["reports."], "expires_in": "90d"},
    },
    "admin": {"summary": "May do everything", "value": {"name": "alice", "role": "admin"}},
}
Prefix = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]
TokenPath = Annotated[int, Path(ge=1, le=ID_MAX, description="The token's id.", examples=[7])]


class TokenRequest(JsonBody):
    """What a token is for."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")] = (
        Field(description="Whose it is, for the audit log; several tokens may share it during a rotation.")
    )
    role: TokenRole
    scope: Annotated[list[Prefix], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="Only for actions whose names begin with one of these: end a prefix with a dot. Absent: "
        "for all.",
    )
    expires_in: Annotated[Duration, Field(gt=0, le=10 * 365 * 86400)] | None = Field(
        default=None, description="How long it is valid, like 90d. Absent: until it is revoked."
    )

    @model_validator(mode="after")
    def _admins_have_no_scope(self) -> "TokenRequest":
        if self.role == "admin" and self.scope is not None:
            raise ValueError("scope: a token with the role admin is for all actions; omit it")
        return self


routes = ApiRoutes(prefix="/tokens", tag="operation")


@routes.get("", summary="List tokens, newest first")
async def get_tokens(parts: Parts, query: PageQuery) -> Page[TokenDetail]:
    async def read(before_id: int, limit: int) -> tuple[list[TokenDetail], int | None]:
        found = await parts.stored_tokens.page(before_id=before_id, limit=limit + 1)
        return page_of(found, limit, lambda row: TokenDetail(**row), lambda token: token.id)

    return await page_before("tokens", query, read)


@routes.post(
    "",
    summary="Create a token; this response shows it, once",
    description="Accepted by every executor at once. From the first token on, every request needs one.",
    status_code=201,
    responses=documented(Code.TOO_LARGE),
)
async def post_token(
    parts: Parts, body: Annotated[TokenRequest, Body(openapi_examples=_EXAMPLES)], caller: CurrentCaller
) -> CreatedToken:
    async with answer_deadline():
        token_id, token = await parts.stored_tokens.create(
            body.name,
            Role[body.role.upper()],
            body.scope,
            seconds=body.expires_in,
            changed_by=caller,
        )
        (row,) = await parts.stored_tokens.page(before_id=ID_MAX, limit=1, token_id=token_id)
    return CreatedToken(**row, token=token)


@routes.delete(
    "/{token_id}",
    summary="Revoke a token",
    description="Refused by every executor within two seconds; its event streams end. It stays in the "
    "list. Repeating the call is harmless.",
    responses=documented(Code.NOT_FOUND),
)
async def delete_token(parts: Parts, token_id: TokenPath, caller: CurrentCaller) -> TokenDetail:
    async with answer_deadline():
        if not await parts.stored_tokens.revoke(token_id, caller):
            raise Refusal(
                Code.NOT_FOUND, f"token_id: there is no token {token_id}; GET /api/v1/tokens lists them"
            )
        (row,) = await parts.stored_tokens.page(before_id=ID_MAX, limit=1, token_id=token_id)
    return TokenDetail(**row)


class Identity(Schema):
    """The token of the caller. All fields are null or empty while this installation requires no token."""

    token_required: bool = Field(description="False: requests need no token, and may do everything.")
    id: int | None = Field(description="As `GET /tokens` lists it. Null: it is one of the settings.")
    name: str | None = Field(description="As it appears in the audit log.", examples=["alice"])
    role: TokenRole | None
    scope: list[str] | None = Field(
        description="The token is only for actions whose names begin with one of these. Null: for all.",
        examples=[["reports."]],
    )
    expires_at: AwareDatetime | None = Field(description="Null: it does not expire.")
    refused: dict[str, str] = Field(
        description="Routes that this token may never request, each with the reason.",
        examples=[{"POST /workers/{worker_id}/drain": "this needs a token with the role 'operate'; ..."}],
    )


identity_routes = ApiRoutes(tag="operation")


@identity_routes.get("/whoami", summary="Show the name, role, scope and expiry of your token")
async def get_whoami(parts: Parts, request: Request) -> Identity:
    token = token_of(request)
    return Identity(
        token_required=token is not None or await parts.tokens.required(),
        id=token.id if token else None,
        name=token.name if token else None,
        role=cast("TokenRole", token.role.word) if token else None,
        scope=list(token.scope) if token and token.scope is not None else None,
        expires_at=await _expiry(token, parts.stored_tokens) if token else None,
        refused=refused_routes(token, templates(request.app)) if token else {},
    )


async def _expiry(token: ApiToken, store: TokenStore) -> Any:
    """Return when a token expires. Those of settings do not."""
    if token.id is None:
        return None
    rows = await store.page(before_id=ID_MAX, limit=1, token_id=token.id)
    return rows[0]["expires_at"] if rows else None
