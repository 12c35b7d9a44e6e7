"""`executor migrate`: brings the database to this version's schema.

In: the database's URL. Out: the newest schema, or a word on why not; a broken connection is tried again. What
it needs of the database is loaded when it runs: the client commands start without it. Next: `migrations`.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from turnstile.common.command_line import EXIT_FAILED, EXIT_UNREACHABLE, CommandFailed, with_options
from turnstile.common.settings import CommonSettings, read_settings
from turnstile.common.telemetry import configure_logging
from turnstile.executor.cli.arguments import duration

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_INSUFFICIENT_PRIVILEGE: Final = "42501"


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
            help="How long to try to reach the database, and then to get its locks. [default: 60s]",
        ),
    ] = 60.0,
) -> None:
    """Bring the database to this version's schema. Safe to run from many processes at once."""
    configure_logging(level=settings.log_level, form=settings.log_format)
    asyncio.run(_migrate(settings.database_url.get_secret_value(), wait_seconds=wait))


async def _migrate(url: str, *, wait_seconds: float) -> None:
    from turnstile.common.database import Database  # noqa: PLC0415
    from turnstile.common.database_url import shown_url  # noqa: PLC0415

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
        interruption = await _bring_up_to_date(url, wait_seconds=wait_seconds)
        if interruption is None:
            logger.info("migrated", extra={"url": shown_url(url)})
            return
        logger.warning("migration_interrupted", extra={"reason": str(interruption)})
        await asyncio.sleep(_RETRY_SECONDS)


async def _bring_up_to_date(url: str, *, wait_seconds: float) -> BaseException | None:
    """Return what broke the connection, if anything; raises CommandFailed where a repetition is of no use."""
    import asyncpg  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415

    from turnstile.common.database import CONNECTION_TROUBLE  # noqa: PLC0415
    from turnstile.migrations import MigrationBlocked  # noqa: PLC0415
    from turnstile.migrations import migrate as bring_up_to_date  # noqa: PLC0415

    try:
        await bring_up_to_date(url, lock_wait_seconds=wait_seconds)
    except MigrationBlocked as error:
        raise _blocked(error, [blocker.pid for blocker in error.blockers]) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        # A service waits for a standby to be promoted; who migrates has named the wrong database.
        raise _migration_failed(error) from error
    except CONNECTION_TROUBLE as error:
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
            "start the version that migrated it, or a later one",
            exit_code=EXIT_FAILED,
        ) from error
    return None


def _blocked(error: Exception, pids: Sequence[int]) -> CommandFailed:
    ending = "; ".join(f"SELECT pg_terminate_backend({pid})" for pid in pids)
    end = f" or end it ({ending})," if ending else ""
    return CommandFailed(
        f"the migration failed: other sessions hold what it changes: {error}; nothing was changed; "
        f"wait for their end,{end} and run it again; --wait 10m waits longer",
        exit_code=EXIT_FAILED,
    )


def _migration_failed(error: BaseException | None) -> CommandFailed:
    # What the driver and SQLAlchemy's face of it have in common.
    is_refused = getattr(error, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE
    remedy = "; run it as the role that owns the tables and functions" if is_refused else ""
    return CommandFailed(f"the migration failed: {error}{remedy}", exit_code=EXIT_FAILED)
