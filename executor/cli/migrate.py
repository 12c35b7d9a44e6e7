"""`executor migrate`: prepares a database for the services.

In: settings from the environment. Out: the schema of this version, or why the database was left as it was.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Annotated, Final

import asyncpg
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from turnstile.common.cli import CommandFailed, with_options
from turnstile.common.database import CONNECTION_ERRORS, Database
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import DatabaseSettings, read_settings
from turnstile.common.telemetry.logs import Episodes, configure_logging
from turnstile.common.urls import shown_url
from turnstile.executor.cli.arguments import DURATION, option
from turnstile.migrations.run import DatabaseUnsuited, MigrationBlocked
from turnstile.migrations.run import migrate as run_migrations

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_INSUFFICIENT_PRIVILEGE: Final = "42501"


@with_options(
    DatabaseSettings,
    functools.partial(read_settings, DatabaseSettings),
    only=("database_url", "log_format", "log_level"),
)
def migrate(
    settings: DatabaseSettings,
    wait: Annotated[
        float,
        option(
            DURATION,
            "Timeout for reaching the database, and then for its locks. [default: 60s]",
            show_default=False,
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
    interrupted = Episodes(logger, "migration_interrupted")
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await database.open()
        except TimeoutError:
            reason = database.last_error or interruption
            raise CommandFailed(
                f"TURNSTILE_DATABASE_URL: {shown_url(url)} cannot be reached: {reason}",
                exit_code=ExitCode.UNREACHABLE,
            ) from None
        finally:
            await database.close()
        interruption = await _migrate_once(url, wait_seconds=wait_seconds)
        if interruption is None:
            logger.info("migrated", extra={"url": shown_url(url)})
            return
        kind = type(interruption).__name__
        interrupted.failed(kind, reason=str(interruption) or kind)
        await asyncio.sleep(_RETRY_SECONDS)


async def _migrate_once(url: str, *, wait_seconds: float) -> BaseException | None:
    """Return what broke the connection, or None; raises CommandFailed where a retry is useless."""
    try:
        await run_migrations(url, lock_wait_seconds=wait_seconds)
    except MigrationBlocked as error:
        raise _blocked(error, [blocker.pid for blocker in error.blockers]) from error
    except DatabaseUnsuited as error:
        raise _migration_failed(error) from None
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
            "use the version that migrated it, or a later one"
        ) from error
    return None


def _blocked(error: Exception, pids: Sequence[int]) -> CommandFailed:
    statements = "; ".join(f"SELECT pg_terminate_backend({pid})" for pid in pids)
    terminate = f" or terminate them ({statements})," if statements else ""
    return CommandFailed(
        f"the migration failed: other sessions hold the locks it needs: {error}; nothing was changed; "
        f"wait until they end,{terminate} and run it again; --wait 10m waits longer"
    )


def _migration_failed(error: BaseException | None) -> CommandFailed:
    # asyncpg's errors and SQLAlchemy's wrappers of them both have a `sqlstate`.
    is_refused = getattr(error, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE
    remedy = "; run it as the role that owns the tables and functions" if is_refused else ""
    return CommandFailed(f"the migration failed: {error}{remedy}")
