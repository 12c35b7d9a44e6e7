"""`executor serve`, `migrate` and `setup-permissions`: run the service and prepare the servers for it.

In: settings from the environment. Out: a running service; the schema of this version; a database role and a
broker account for each service, with a folder of credentials.
"""

import asyncio
import functools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import asyncpg
import httpx
import typer
from alembic.util import CommandError
from pydantic import Field, SecretStr
from sqlalchemy.exc import DBAPIError

from turnstile.common.cli import (
    ENVIRONMENT_ONLY,
    EXIT_FAILED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    CommandFailed,
    with_options,
)
from turnstile.common.database import CONNECTION_ERRORS, Database
from turnstile.common.http import listen
from turnstile.common.known_settings import warn_of_unknown_settings
from turnstile.common.lifecycle import run_service
from turnstile.common.settings import CommonSettings, read_settings
from turnstile.common.telemetry.logs import configure_logging
from turnstile.common.telemetry.tracing import configure_tracing
from turnstile.common.urls import amqp_urls, driver_url, shown_url
from turnstile.executor.cli.arguments import duration
from turnstile.executor.permissions.broker import definitions, set_up_accounts
from turnstile.executor.permissions.credentials import (
    Login,
    broker_hash,
    choose_login,
    write_credentials,
    write_privately,
)
from turnstile.executor.permissions.database import GROUPS, SetupRefused, set_up_roles
from turnstile.executor.settings import ExecutorSettings
from turnstile.migrations import MigrationBlocked
from turnstile.migrations import migrate as run_migrations

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_TOKEN_SECONDS: Final = 5.0
_INSUFFICIENT_PRIVILEGE: Final = "42501"
_SERVICES: Final = ("executor", "worker", "client")


@with_options(ExecutorSettings, functools.partial(read_settings, ExecutorSettings))
def serve(settings: ExecutorSettings) -> None:
    """Run the executor service.

    Serves the request queue, the HTTP API and the dashboard, and runs the watchdog. SIGTERM or Ctrl-C stops
    it gracefully; a second one stops it immediately.
    """
    from turnstile.executor.service import ExecutorService  # noqa: PLC0415

    if settings.is_exposed() and not _has_stored_token(settings.database_url.get_secret_value()):
        raise CommandFailed(
            f"TURNSTILE_API_TOKENS: {settings.http_host} can be reached from other machines, and no token is "
            "set; set one (TURNSTILE_API_TOKENS=...), create one in the database ('executor tokens create "
            "NAME --role admin --direct'), bind to 127.0.0.1 (TURNSTILE_HTTP_HOST), or add --insecure",
            exit_code=EXIT_USAGE,
        )
    configure_logging(level=settings.log_level, form=settings.log_format)
    warn_of_unknown_settings(os.environ)
    configure_tracing(service="turnstile-executor", endpoint=settings.otlp_endpoint)
    listener = listen(settings.http_host, settings.http_port, settings="TURNSTILE_HTTP")
    run_service(ExecutorService(settings, listener).serve)


def _has_stored_token(url: str) -> bool:
    """Return whether the database has an API token; false where it cannot be reached or is empty."""

    async def read() -> bool:
        connection = await asyncpg.connect(driver_url(url), timeout=_TOKEN_SECONDS)
        try:
            return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM api_token)"))
        finally:
            await connection.close(timeout=_TOKEN_SECONDS)

    try:
        return asyncio.run(read())
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


@with_options(
    CommonSettings,
    functools.partial(read_settings, CommonSettings),
    only=("database_url", "log_format", "log_level"),
)
def migrate(
    settings: CommonSettings,
    wait: Annotated[
        float,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            show_default=False,
            help="Timeout for reaching the database, and then for its locks. [default: 60s]",
        ),
    ] = 60.0,
) -> None:
    """Migrate the database to the schema of this version. Several processes may run it at once."""
    configure_logging(level=settings.log_level, form=settings.log_format)
    asyncio.run(_migrate(settings.database_url.get_secret_value(), wait_seconds=wait))


async def _migrate(url: str, *, wait_seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + wait_seconds
    database = Database(url, application_name="turnstile migrate", connections_max=1)
    interruption: BaseException | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await database.open()
        except TimeoutError:
            reason = database.last_error or interruption
            raise CommandFailed(
                f"TURNSTILE_DATABASE_URL: {shown_url(url)} cannot be reached: {reason}",
                exit_code=EXIT_UNREACHABLE,
            ) from None
        finally:
            await database.close()
        interruption = await _migrate_once(url, wait_seconds=wait_seconds)
        if interruption is None:
            logger.info("migrated", extra={"url": shown_url(url)})
            return
        logger.warning("migration_interrupted", extra={"reason": str(interruption)})
        await asyncio.sleep(_RETRY_SECONDS)


async def _migrate_once(url: str, *, wait_seconds: float) -> BaseException | None:
    """Return what broke the connection, or None; raises CommandFailed where a retry is useless."""
    try:
        await run_migrations(url, lock_wait_seconds=wait_seconds)
    except MigrationBlocked as error:
        raise _blocked(error, [blocker.pid for blocker in error.blockers]) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        # Unlike a service, a migration does not wait for a standby to be promoted: the URL is wrong.
        raise _migration_failed(error) from error
    except CONNECTION_ERRORS as error:
        return error
    except DBAPIError as error:
        if error.connection_invalidated:
            return error.orig
        raise _migration_failed(error.orig) from error
    except asyncpg.PostgresError as error:
        raise _migration_failed(error) from error
    except CommandError as error:
        raise CommandFailed(
            f"the migration failed: {error}: the database is newer than this version; "
            "use the version that migrated it, or a later one",
            exit_code=EXIT_FAILED,
        ) from error
    return None


def _blocked(error: Exception, pids: Sequence[int]) -> CommandFailed:
    statements = "; ".join(f"SELECT pg_terminate_backend({pid})" for pid in pids)
    terminate = f" or terminate them ({statements})," if statements else ""
    return CommandFailed(
        f"the migration failed: other sessions hold the locks it needs: {error}; nothing was changed; "
        f"wait until they end,{terminate} and run it again; --wait 10m waits longer",
        exit_code=EXIT_FAILED,
    )


def _migration_failed(error: BaseException | None) -> CommandFailed:
    # asyncpg's errors and SQLAlchemy's wrappers of them both have a `sqlstate`.
    is_refused = getattr(error, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE
    remedy = "; run it as the role that owns the tables and functions" if is_refused else ""
    return CommandFailed(f"the migration failed: {error}{remedy}", exit_code=EXIT_FAILED)


class SetupSettings(CommonSettings):
    """Settings of `setup-permissions`: the URLs of administrators."""

    management_url: Annotated[SecretStr, ENVIRONMENT_ONLY] = Field(
        default=SecretStr(""),
        description="RabbitMQ's management API, as an administrator: http://user:password@host:15672. "
        "Without it, the definitions for the broker are written to the credentials folder.",
    )


@with_options(
    SetupSettings,
    functools.partial(read_settings, SetupSettings),
    only=("database_url", "amqp_url", "management_url"),
)
def setup_permissions(
    settings: SetupSettings,
    credentials: Annotated[
        Path, typer.Option(help="Folder for the credentials of each service.", metavar="FOLDER")
    ] = Path("turnstile-credentials"),
    prefix: Annotated[
        str,
        typer.Option(
            help="Prefix of the account names: <prefix>-executor, -worker, -client.", metavar="NAME"
        ),
    ] = "turnstile",
    database: Annotated[bool, typer.Option(help="Create the database roles.")] = True,
    broker: Annotated[bool, typer.Option(help="Create the broker accounts.")] = True,
) -> None:
    """Create least-privilege accounts for each service.

    Can be repeated: passwords are taken from the credentials folder, unless TURNSTILE_EXECUTOR_PASSWORD,
    TURNSTILE_WORKER_PASSWORD and TURNSTILE_CLIENT_PASSWORD (or ..._PASSWORD_FILE) set them.
    """
    names = {service: f"{prefix}-{service}" for service in _SERVICES}
    try:
        logins = [choose_login(s, names[s], credentials, os.environ) for s in _SERVICES]
        urls = {"database_url": settings.database_url, "amqp_url": settings.amqp_url}
        # Files first: a password that exists only on a server would be lost.
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
        _set_up_broker(settings, logins, credentials, names)
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


def _set_up_broker(
    settings: SetupSettings, logins: Sequence[Login], folder: Path, names: Mapping[str, str]
) -> None:
    # As the client library reads it: the path without its first slash; empty is the default vhost.
    vhost = amqp_urls(settings.amqp_url.get_secret_value())[0].path[1:] or "/"
    management_url = settings.management_url.get_secret_value()
    if not management_url:
        hashes = {login.service: broker_hash(login.password) for login in logins}
        file = folder / "rabbitmq-definitions.json"
        write_privately(file, json.dumps(definitions(vhost, names, hashes), indent=2) + "\n")
        typer.echo(f"broker: not changed; run on its host: rabbitmqctl import_definitions {file}")
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
