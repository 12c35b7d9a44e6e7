"""`executor tokens create | list | revoke`, over the HTTP API; `create --direct` in the database."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any, Final, Literal, NamedTuple

import asyncpg
import typer
from pydantic import Field, SecretStr

from turnstile.common.cli import CommandFailed, bad_input, command_line, with_options
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code, Unavailable
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import DatabaseSettings, read_settings
from turnstile.common.urls import shown_url
from turnstile.executor.api_tokens import Role
from turnstile.executor.callers import DIRECTLY
from turnstile.executor.cli.arguments import DURATION, TOKEN, argument, encode, given, option
from turnstile.executor.cli.client import Api, ApiRefused, ApiSettings, Json, connect, with_api
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, change_named
from turnstile.executor.cli.output import (
    JsonOption,
    Listing,
    instant,
    limit_of,
    print_json,
    print_line,
    read_all,
    warn,
)
from turnstile.executor.queries.schemas import CreatedToken
from turnstile.executor.stored_tokens import TokenStore

_CONNECT_SECONDS: Final = 10.0
_LIST: Final = Listing(
    path="/tokens",
    empty="No tokens in the database",
    columns={
        "ID": "id",
        "NAME": "name",
        "ROLE": "role",
        "SCOPE": lambda token: ", ".join(token["scope"] or ["all actions"]),
        "STATE": "state",
        "CREATED": lambda token: instant(token["created_at"]),
        "BY": lambda token: token["created_by"] or "-",
        "EXPIRES": lambda token: instant(token["expires_at"]) or "never",
        "LAST USED": lambda token: instant(token["last_used_at"]) or "never",
    },
    has_cursor=False,
)

app = command_line("Create, list and revoke API tokens.")


class _Settings(ApiSettings):
    database_url: SecretStr = Field(
        default=DatabaseSettings.model_fields["database_url"].default,
        description="URL of the database, for --direct.",
    )


class _Target(NamedTuple):
    api: Api
    database_url: str | None


def _target(*, database_url: str | None = None, **given: Any) -> _Target:
    return _Target(connect(**given), database_url)


def _create(
    target: _Target,
    name: Annotated[str, argument("NAME", "Name of the owner, as the audit log shows it.")],
    *,
    role: Annotated[
        Literal["read", "submit", "operate", "admin"],
        option(
            "ROLE",
            "Permissions: read, submit (also cancel and retry single executions), operate "
            "(everything but tokens), or admin.",
        ),
    ],
    scope: Annotated[
        list[str] | None,
        option("PREFIX", 'Only actions whose names begin with this prefix, like "reports."; repeatable.'),
    ] = None,
    expires: Annotated[
        float | None, option(DURATION, "Time until the token expires, like 90d. Default: it never expires.")
    ] = None,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="Create the token in the database, without the API: for the first token of an installation, "
            "or after the last one was lost.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create an API token and print it, once.

    Every executor accepts it at once. Only a digest is stored. Once a token exists, every request needs
    one.
    """
    if role == Role.ADMIN.word and scope:
        raise bad_input("--scope: a token with the role admin is for all actions; omit it")
    with closing(target.api) as api:
        if direct:
            url = read_settings(DatabaseSettings, database_url=target.database_url).database_url
            created = asyncio.run(
                _create_directly(url.get_secret_value(), name, Role[role.upper()], scope, expires)
            )
        else:
            body = given(name=name, role=role, scope=scope or None, expires_in=expires)
            created = api.post("/tokens", encode(body))
    if as_json:
        print_json(created)
        return
    print_line(created["token"])
    warn(f"token {created['id']} of {name!r}; it is shown only once: store it now")


async def _create_directly(
    url: str, name: str, role: Role, scope: list[str] | None, seconds: float | None
) -> Json:
    database = Database(url, application_name="turnstile tokens", connections_max=1)
    store = TokenStore(database)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await database.open()
        token_id, token = await store.create(name, role, scope or None, seconds=seconds, changed_by=DIRECTLY)
        (row,) = await store.page(before_id=token_id + 1, token_id=token_id, limit=1)
    except (TimeoutError, Unavailable) as error:
        raise CommandFailed(
            f"TURNSTILE_DATABASE_URL: {shown_url(url)} cannot be reached: {database.last_error or error}",
            exit_code=ExitCode.UNREACHABLE,
        ) from None
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        raise CommandFailed(
            "TURNSTILE_DATABASE_URL: the database has no tokens yet; run 'executor migrate' first"
        ) from None
    except asyncpg.PostgresError as error:
        raise CommandFailed(f"TURNSTILE_DATABASE_URL: {error}") from None
    finally:
        await database.close()
    return Json(CreatedToken(**row, token=token).model_dump(mode="json"))


app.command("create")(with_options(_Settings, _target)(_create))


@app.command("list")
@with_api
def list_tokens(
    api: Api, limit: Annotated[int, limit_of("tokens", 100_000)] = 50, as_json: JsonOption = False
) -> None:
    """List the tokens in the database, newest first, with those that expired or were revoked."""
    _LIST.print_page(api, limit=limit, as_json=as_json)


@app.command()
@with_api
def revoke(
    api: Api,
    token_ids: Annotated[list[int], argument(TOKEN, "Ids, as in 'executor tokens list'.")],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Revoke tokens permanently: every executor refuses them within two seconds.

    A terminal prompts for confirmation, and warns if the token in use or the last admin is among them;
    without a terminal, --yes is needed. Example: executor tokens revoke 7 --yes
    """
    known = _known(api, token_ids) if dry_run else {}
    change_named(
        token_ids,
        read=lambda each: Json({**_token(known, each), "dry_run": True}),
        plan=_revocation_plan,
        asks="Revoke the tokens",
        destroys="a revoked token is refused for good",
        names=lambda: _owners(api, token_ids),
        change=lambda each: api.delete(f"/tokens/{each}"),
        changed=lambda each, token: f"{each}: {token['state']}; it was of {token['name']}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def _known(api: Api, token_ids: Collection[int]) -> dict[int, Json]:
    """Return the tokens in the database by id, after warnings of what is lost with some of them."""
    known = {token["id"]: token for token in read_all(api, "/tokens")}
    for warning in _losses(api.get("/whoami"), known, token_ids):
        warn(warning)
    return known


def _losses(identity: Json, known: dict[int, Json], token_ids: Collection[int]) -> Iterator[str]:
    if (own := identity["id"]) in token_ids:
        yield (
            f"warning: {own} is the token that this command uses: the API refuses it afterwards; set "
            "TURNSTILE_API_TOKEN to another one"
        )
    has_fixed_admin = own is None and identity["role"] == Role.ADMIN.word
    admins = {each for each, token in known.items() if token["role"] == "admin" and token["state"] == "valid"}
    if admins and admins <= {*token_ids} and not has_fixed_admin:
        yield (
            "warning: no valid token with the role admin is left in the database then; create one first: "
            "executor tokens create NAME --role admin; afterwards only 'executor tokens create NAME --role "
            "admin --direct' can, which needs TURNSTILE_DATABASE_URL"
        )


def _owners(api: Api, token_ids: Sequence[int]) -> list[str]:
    known = _known(api, token_ids)
    return [_owner(each, known[each]) if each in known else f"{each} (no such token)" for each in token_ids]


def _owner(token_id: int, token: Json) -> str:
    state = "" if token["state"] == "valid" else f", {token['state']}"
    return f"{token_id} of {token['name']} ({token['role']}{state})"


def _token(known: dict[int, Json], token_id: int) -> Json:
    if token_id not in known:
        raise ApiRefused({"code": Code.NOT_FOUND, "detail": f"token_id: there is no token {token_id}"})
    return known[token_id]


def _revocation_plan(token_id: int, token: Json) -> str:
    if token["state"] == "revoked":
        return f"Would change nothing: {_owner(token_id, token)}"
    return f"Would revoke {_owner(token_id, token)}"
