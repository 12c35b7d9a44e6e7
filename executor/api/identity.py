"""The route that tells a caller who it is and what it may not do; the dashboard shows both."""

from typing import Any, cast

from fastapi import APIRouter, Request
from pydantic import AwareDatetime, Field

from turnstile.common.schemas import Schema
from turnstile.executor.api.auth import refused_routes
from turnstile.executor.api.paging import ID_MAX
from turnstile.executor.api.problems import documented
from turnstile.executor.api_tokens import ApiToken
from turnstile.executor.queries.schemas import TokenRole
from turnstile.executor.stored_tokens import AcceptedTokens, TokenStore


class Identity(Schema):
    """The token of the caller. All fields are null or empty while this installation requires no token."""

    token_required: bool = Field(description="False: requests need no token, and may do everything.")
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


def identity_routes(tokens: AcceptedTokens, store: TokenStore) -> APIRouter:
    """Return the route."""
    routes = APIRouter(tags=["operation"])

    @routes.get(
        "/whoami", summary="Show the name, role, scope and expiry of your token", responses=documented()
    )
    async def get_whoami(request: Request) -> Identity:
        token = cast("ApiToken | None", request.state.caller_token)
        if token is None:
            return Identity(
                token_required=await tokens.required(),
                name=None,
                role=None,
                scope=None,
                expires_at=None,
                refused={},
            )
        return Identity(
            token_required=True,
            name=token.name,
            role=cast("TokenRole", token.role.word),
            scope=None if token.scope is None else list(token.scope),
            expires_at=await _expiry(token, store),
            refused=refused_routes(token),
        )

    return routes


async def _expiry(token: ApiToken, store: TokenStore) -> Any:
    """Return when a token expires. Those of settings do not."""
    if token.id is None:
        return None
    rows = await store.page(before_id=ID_MAX, limit=1, token_id=token.id)
    return rows[0]["expires_at"] if rows else None
