"""`executor export` and `executor restore-check`: back up the database, and make a restored copy safe.

In: the settings of an administrator, from the environment. Out: a file; or a copy of the database that
executors and workers may use. Everything that is found and done is printed, one line for each step.
"""

import asyncio
import functools
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import asyncpg
import typer
from alembic.util import CommandError
from pydantic import Field
from sqlalchemy.exc import DBAPIError

from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.cli import CommandFailed, bad_input, with_options
from turnstile.common.database import CONNECTION_ERRORS
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import read_settings
from turnstile.common.telemetry.logs import configure_logging
from turnstile.common.urls import shown_url
from turnstile.executor.backup.broker import requests_waiting
from turnstile.executor.backup.export import export as export_database
from turnstile.executor.backup.restored import Label, RestoreOptions
from turnstile.executor.backup.restored import restore_check as check_restored
from turnstile.executor.cli.arguments import argument, option
from turnstile.executor.cli.confirmation import DryRunOption, YesOption, confirm
from turnstile.executor.cli.documents import ExportedFile
from turnstile.executor.cli.output import JsonOption, print_json, print_line, warn
from turnstile.executor.settings import ExecutorSettings

_LABEL_WIDTH: Final = 9
_QUESTION: Final = "Make this copy safe: skip ids, and purge messages about executions in RabbitMQ?"
_DESTROYS: Final = "a repair of a restored copy purges messages in RabbitMQ"
_INSUFFICIENT_PRIVILEGE: Final = "42501"
_ONLY: Final = ("database_url", "amqp_url", "postgresql_bin")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreStep:
    """What `restore-check` found, did, or would do."""

    step: Label
    sentence: str


class BackupSettings(ExecutorSettings):
    """The settings of `export` and `restore-check`."""

    postgresql_bin: str = Field(
        default="", description="Folder of pg_dump and pg_restore. Default: the folders of PATH."
    )


@with_options(BackupSettings, functools.partial(read_settings, BackupSettings), only=_ONLY)
def export(
    settings: BackupSettings,
    file: Annotated[Path, argument("FILE", "File to create; it must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Write a backup of the database to a file, while everything runs.

    Runs pg_dump, which must not be older than the server. Messages in RabbitMQ need no backup, except
    requests that no executor has taken yet: their number is shown. `restore-check --from FILE` restores.
    """
    url = settings.database_url.get_secret_value()
    if file.exists():
        raise bad_input(f"{file}: exists already; name a new file")
    state = _run(url, export_database(url, file, postgresql_bin=settings.postgresql_bin))
    size = file.stat().st_size
    if not as_json:
        print_line(
            f"{file}: {size:,} bytes, executions up to #{state.last_id} as of "
            f"{state.at:%Y-%m-%d %H:%M:%S} UTC: {state.summary()}"
        )
    left: int | None = None
    try:
        left = asyncio.run(requests_waiting(settings.amqp_url.get_secret_value()))
    except BrokerUnavailable as error:
        warn(f"requests that wait in RabbitMQ are unknown: {error}")
    if as_json:
        counts = {name: getattr(state, name) for name in ("running", "offered", "waiting", "delayed")}
        print_json(
            ExportedFile(
                file=str(file), bytes=size, last_id=state.last_id, at=state.at, requests_left=left, **counts
            )
        )
    elif left:
        print_line(f"not in it: {left} requests in RabbitMQ, which no executor has taken yet")


@with_options(BackupSettings, functools.partial(read_settings, BackupSettings), only=_ONLY)
def restore_check(
    settings: BackupSettings,
    *,
    source: Annotated[
        Path | None,
        option("FILE", "First restore this file into the database, which must be empty.", "--from"),
    ] = None,
    dry_run: DryRunOption = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Treat the database as a restored copy even if it does not look like one: a copy from "
            "a disk or machine snapshot.",
        ),
    ] = False,
    first_id: Annotated[
        int | None,
        option(
            "ID",
            "Next id of an execution, above every id that was ever assigned. [default: 10,000 for each "
            "second since the newest execution of the copy]",
            min=1,
            show_default=False,
        ),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a restored database safe before executors and workers start.

    Run it as the owner of the tables, after every restore, while all services are stopped. It migrates the
    schema, skips all ids that were assigned since the backup, purges messages about executions (requests
    stay), and audits the copy. It can be repeated, and changes nothing in a database that was not restored.
    A terminal prompts for confirmation before the first change; without one, --yes is needed.
    """
    if source is not None and not source.is_file():
        raise bad_input(f"--from: {source}: no such file")
    configure_logging(level="WARNING", form=settings.log_format)
    url = settings.database_url.get_secret_value()
    options = RestoreOptions(
        source=source,
        postgresql_bin=settings.postgresql_bin,
        dry_run=dry_run,
        is_restored=restored,
        first_id=first_id,
        confirm=lambda: confirm(lambda: _QUESTION, yes=yes, destroys=_DESTROYS),
    )
    if not _run(url, check_restored(settings, options, _say_json if as_json else _say)):
        raise typer.Exit(ExitCode.FAILED)


def _say(label: Label, sentence: str) -> None:
    print_line(f"{label:{_LABEL_WIDTH}}{sentence}")


def _say_json(label: Label, sentence: str) -> None:
    print_json(RestoreStep(step=label, sentence=sentence), on_one_line=True)


def _run(url: str, work: Coroutine[None, None, T]) -> T:
    try:
        return asyncio.run(work)
    except CommandFailed:
        raise
    except BrokerUnavailable as error:
        raise CommandFailed(f"TURNSTILE_AMQP_URL: {error}", exit_code=ExitCode.UNREACHABLE) from None
    except (TurnstileError, CommandError) as error:
        raise CommandFailed(str(error)) from None
    except (DBAPIError, asyncpg.PostgresError, *CONNECTION_ERRORS) as error:
        if isinstance(error, OSError) and error.filename:
            raise bad_input(f"{error.filename}: {error.strerror}") from None
        driver_error = error.orig if isinstance(error, DBAPIError) else error
        reason = str(driver_error) or type(error).__name__
        # asyncpg's errors and SQLAlchemy's wrappers of them both have a `sqlstate`.
        if getattr(driver_error, "sqlstate", None) == _INSUFFICIENT_PRIVILEGE:
            raise CommandFailed(
                f"TURNSTILE_DATABASE_URL: {reason}; connect as the owner of the tables"
            ) from None
        raise CommandFailed(
            f"TURNSTILE_DATABASE_URL: {shown_url(url)}: {reason}", exit_code=ExitCode.UNREACHABLE
        ) from None
