"""`executor setup-permissions`: an account for each service, on both servers.

In: the database's URL as its owner, the broker's URL, and the management URL of its administrator, from the
environment. Out: roles, accounts, and a folder with what each service is to be started with; or, without a
management URL, the broker's definitions and how to import them. Next: `executor.permissions`.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import httpx
import typer
from pydantic import BaseModel, Field, SecretStr
from yarl import URL

from turnstile.common.amqp_url import amqp_urls
from turnstile.common.command_line import (
    ENVIRONMENT_ONLY,
    EXIT_FAILED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    CommandFailed,
    with_options,
)
from turnstile.common.database_url import shown_url
from turnstile.common.settings import CommonSettings, read_settings
from turnstile.executor.permissions.accounts import definitions
from turnstile.executor.permissions.broker import set_up_accounts
from turnstile.executor.permissions.credentials import Login, choose_login, write_credentials, write_privately
from turnstile.executor.permissions.database import GROUPS, SetupRefused, set_up_roles
from turnstile.executor.permissions.passwords import broker_hash

_SERVICES: Final = ("executor", "worker", "client")


class SetupSettings(CommonSettings):
    """What is set up, and who may."""

    management_url: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="RabbitMQ's management API, as an administrator: http://user:password@host:15672. "
        "Without it the broker's definitions are written beside the credentials.",
    )


class _Asked(BaseModel):
    folder: Path
    names: dict[str, str]
    database: bool
    broker: bool


@with_options(
    SetupSettings,
    partial(read_settings, SetupSettings),
    only=("database_url", "amqp_url", "management_url"),
)
def setup_permissions(
    settings: SetupSettings,
    credentials: Annotated[
        Path, typer.Option(help="Folder for what each service is to be started with.", metavar="FOLDER")
    ] = Path("turnstile-credentials"),
    prefix: Annotated[
        str, typer.Option(help="Of the accounts' names: <prefix>-executor, -worker, -client.", metavar="NAME")
    ] = "turnstile",
    database: Annotated[bool, typer.Option(help="Set up the database's roles.")] = True,
    broker: Annotated[bool, typer.Option(help="Set up the broker's accounts.")] = True,
) -> None:
    """Give each service accounts of its own.

    With no more rights than it needs. May be run again: passwords stay as they are in the folder, unless
    TURNSTILE_EXECUTOR_PASSWORD, TURNSTILE_WORKER_PASSWORD, TURNSTILE_CLIENT_PASSWORD, or the file that
    ..._PASSWORD_FILE names, say otherwise.
    """
    names = {service: f"{prefix}-{service}" for service in _SERVICES}
    asked = _Asked(folder=credentials, names=names, database=database, broker=broker)
    try:
        logins = [choose_login(s, names[s], credentials, os.environ) for s in _SERVICES]
        urls = {"database_url": settings.database_url, "amqp_url": settings.amqp_url}
        # First the files: a password that is on a server alone would be lost.
        files = [
            write_credentials(login, credentials, **{n: u.get_secret_value() for n, u in urls.items()})
            for login in logins
        ]
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except OSError as error:
        raise CommandFailed(f"--credentials: {credentials}: {error.strerror}", exit_code=EXIT_USAGE) from None
    if database:
        _set_up_database(settings, [login for login in logins if login.service in GROUPS])
    if broker:
        _set_up_broker(settings, asked, logins)
    typer.echo("credentials: " + ", ".join(str(file) for file in files))


def _set_up_database(settings: SetupSettings, logins: Sequence[Login]) -> None:
    url = settings.database_url.get_secret_value()
    try:
        asyncio.run(set_up_roles(url, logins))
    except (SetupRefused, asyncpg.InsufficientPrivilegeError) as error:
        raise CommandFailed(f"TURNSTILE_DATABASE_URL: {error}", exit_code=EXIT_FAILED) from None
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = str(error) or type(error).__name__
        raise CommandFailed(
            f"TURNSTILE_DATABASE_URL: {shown_url(url)}: {reason}", exit_code=EXIT_UNREACHABLE
        ) from None
    typer.echo("database: " + ", ".join(f"{login.name} in {GROUPS[login.service]}" for login in logins))


def _set_up_broker(settings: SetupSettings, asked: _Asked, logins: Sequence[Login]) -> None:
    vhost = _vhost(amqp_urls(settings.amqp_url.get_secret_value())[0])
    management_url = settings.management_url.get_secret_value()
    if not management_url:
        _write_definitions(asked, vhost, logins)
        return
    try:
        set_up_accounts(management_url, vhost, logins)
    except SetupRefused as error:
        raise CommandFailed(f"TURNSTILE_MANAGEMENT_URL: {error}", exit_code=EXIT_FAILED) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise CommandFailed(
            f"TURNSTILE_MANAGEMENT_URL: {reason}; expected http://user:password@host:15672",
            exit_code=EXIT_UNREACHABLE,
        ) from None
    typer.echo(f"broker: {', '.join(login.name for login in logins)} in the vhost {vhost!r}")


def _write_definitions(asked: _Asked, vhost: str, logins: Sequence[Login]) -> None:
    hashes = {login.service: broker_hash(login.password) for login in logins}
    file = asked.folder / "rabbitmq-definitions.json"
    text = json.dumps(definitions(vhost, asked.names, hashes), indent=2) + "\n"
    write_privately(file, text)
    typer.echo(f"broker: nothing done; on its host run: rabbitmqctl import_definitions {file}")


def _vhost(url: URL) -> str:
    # As the client library reads it: the path without its first slash; none is the default vhost.
    return url.path[1:] or "/"
