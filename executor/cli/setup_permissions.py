"""`executor setup-permissions`: a database role and a broker account for each service of this installation.

In: the URLs of administrators, and the folder of an earlier run. Out: the plan, printed before anything
changes; then accounts on both servers and a file of credentials for each service. The order survives a crash
at any line: pending files, the database (one transaction), the broker, the files. A second run finds the
pending files and continues.
"""

import asyncio
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import asyncpg
import httpx
import typer

from turnstile.common.cli import CommandFailed, with_options
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import DatabaseSettings, read_settings
from turnstile.common.urls import shown_url
from turnstile.executor.cli.confirmation import YesOption, confirm
from turnstile.executor.permissions.broker import ManagementApi, definitions
from turnstile.executor.permissions.credentials import (
    Login,
    choose_login,
    complete_files,
    installation_of,
    read_stored,
    write_pending,
    write_privately,
)
from turnstile.executor.permissions.database import change_roles, read_roles
from turnstile.executor.permissions.plan import (
    PREFIX_BYTES_MAX,
    AccountChange,
    AccountStep,
    Installation,
    Present,
    Server,
    SetupRefused,
    default_prefix,
    plan_account,
    remedies,
    to_restart,
)
from turnstile.executor.permissions.policies import policies_that_drop
from turnstile.executor.permissions.rights import BROKER, GROUPS
from turnstile.executor.settings import ManagementSettings

_DEFINITIONS: Final = "rabbitmq-definitions.json"
_DESTROYS: Final = "--rotate replaces passwords, and who uses the present ones can no longer connect"
_RESTARTS: Final = {"executor": "all executors", "worker": "all workers", "client": "all clients over AMQP"}
_BROKER: Final = "TURNSTILE_MANAGEMENT_URL"
_EXPECTED: Final = "; expected http://user:password@host:15672"


class SetupSettings(ManagementSettings, DatabaseSettings):
    """Settings of `setup-permissions`: the URLs of administrators."""

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the services' files, by the name of their setting."""
        return {
            "database_url": self.database_url.get_secret_value(),
            "amqp_url": self.amqp_url.get_secret_value(),
        }


@with_options(
    SetupSettings,
    functools.partial(read_settings, SetupSettings),
    only=("database_url", "amqp_url", "management_url"),
)
def setup_permissions(
    settings: SetupSettings,
    *,
    credentials: Annotated[
        Path, typer.Option(help="Folder for the credentials of this installation.", metavar="FOLDER")
    ] = Path("turnstile-credentials"),
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Prefix of the account names: <prefix>-executor, -worker, -client. [default: that of the "
            "accounts in the folder, else turnstile-DATABASE-VHOST without repeated words]",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate",
            help="Set new passwords. Also takes over accounts of another installation, which is locked out. "
            "A terminal prompts for confirmation; elsewhere --yes is needed.",
        ),
    ] = False,
    yes: YesOption = False,
    database: Annotated[bool, typer.Option(help="Create the database roles.")] = True,
    broker: Annotated[bool, typer.Option(help="Create the broker accounts.")] = True,
) -> None:
    """Create least-privilege accounts for each service of this installation.

    Prints what it will do, and refuses to change an account of another installation without --rotate. Can be
    repeated: passwords are taken from the credentials folder, unless TURNSTILE_EXECUTOR_PASSWORD,
    TURNSTILE_WORKER_PASSWORD and TURNSTILE_CLIENT_PASSWORD (or ..._PASSWORD_FILE) set them.

    Examples: executor setup-permissions --dry-run;
    executor setup-permissions --credentials /etc/turnstile/credentials
    """
    if prefix is not None and not 0 < len(prefix.encode()) <= PREFIX_BYTES_MAX:
        raise CommandFailed(f"--prefix: expected 1 to {PREFIX_BYTES_MAX} bytes", exit_code=ExitCode.USAGE)
    installation = installation_of(**settings.urls)
    prefix = prefix or _stored_prefix(credentials, installation) or default_prefix(installation)
    logins = _choose_logins(credentials, prefix, rotate=rotate)
    with _management(settings, reads=broker) as api:
        setup = _read(settings, installation, logins, api, reads_database=database)
        steps = _plan(setup, rotate=rotate)
        _print_plan(setup, steps)
        if broker and api is None:
            typer.echo(
                f"broker, vhost {installation.vhost!r}: not read, since TURNSTILE_MANAGEMENT_URL is not set; "
                f"its definitions are written to {credentials / _DEFINITIONS}"
            )
        if any(step.change is AccountChange.REFUSE for step in steps):
            raise CommandFailed(f"nothing was changed: {remedies(steps)}", exit_code=ExitCode.FAILED)
        if dry_run:
            typer.echo("nothing was changed (--dry-run)")
        else:
            if rotate:
                confirm(lambda: "Set new passwords?", yes=yes, destroys=_DESTROYS)
            _change(setup, steps, credentials, writes_definitions=broker and api is None)
        _check_policies(setup)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """What is set up: the accounts of an installation, as the servers that were read have them."""

    settings: SetupSettings
    installation: Installation
    logins: Mapping[str, Login]
    api: ManagementApi | None
    found: Mapping[Server, Mapping[str, Present]]
    has_vhost: bool

    @property
    def database_url(self) -> str:
        return self.settings.urls["database_url"]


def _stored_prefix(folder: Path, installation: Installation) -> str | None:
    """Return the prefix of the accounts in the folder; raises CommandFailed if they are another one's."""
    prefix = None
    for service in BROKER:
        for stored in (read_stored(folder, service, pending=True), read_stored(folder, service)):
            if stored is None:
                continue
            if not stored.is_for(installation):
                whose = f"vhost {stored.vhost!r}" + (
                    f", database {stored.database!r}" if stored.database else ""
                )
                raise CommandFailed(
                    f"--credentials: {folder / service}.env is of another installation ({whose}); name "
                    "another folder; nothing was changed",
                    exit_code=ExitCode.FAILED,
                )
            if prefix is None and stored.name.endswith(f"-{service}"):
                prefix = stored.name.removesuffix(f"-{service}")
    return prefix


def _read(
    settings: SetupSettings,
    installation: Installation,
    logins: Mapping[str, Login],
    api: ManagementApi | None,
    *,
    reads_database: bool,
) -> _Setup:
    found: dict[Server, Mapping[str, Present]] = {}
    if reads_database:
        url = settings.urls["database_url"]
        with _database_errors(url):
            roles = asyncio.run(read_roles(url, [logins[each] for each in logins if each in GROUPS]))
        # A pooler may know the database by another name.
        installation = replace(installation, database=roles.database)
        found["database"] = roles.present
    has_vhost = False
    if api is not None:
        with _server_errors(_BROKER, hint=_EXPECTED):
            found["broker"] = api.read_accounts(installation.vhost, logins.values())
            has_vhost = api.has_vhost(installation.vhost)
    return _Setup(
        settings=settings, installation=installation, logins=logins, api=api, found=found, has_vhost=has_vhost
    )


def _choose_logins(folder: Path, prefix: str, *, rotate: bool) -> dict[str, Login]:
    try:
        return {
            service: choose_login(service, prefix, folder, os.environ, rotate=rotate) for service in BROKER
        }
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=ExitCode.USAGE) from None


def _plan(setup: _Setup, *, rotate: bool) -> list[AccountStep]:
    return [
        plan_account(
            server, service, login.name, installation=setup.installation, rotate=rotate,
            present=setup.found[server].get(service), source=login.source,
        )
        for server in setup.found
        for service, login in setup.logins.items()
        if server == "broker" or service in GROUPS
    ]  # fmt: skip


def _check_policies(setup: _Setup) -> None:
    """Raise CommandFailed where a policy would let the broker drop confirmed messages."""
    if setup.api is None:
        return
    with _server_errors(_BROKER, hint=_EXPECTED):
        found = policies_that_drop(setup.api, setup.installation.vhost)
    if found:
        raise CommandFailed("; ".join(found), exit_code=ExitCode.FAILED)


def _print_plan(setup: _Setup, steps: Sequence[AccountStep]) -> None:
    shown = {
        "database": (f"database {setup.installation.database!r}", shown_url(setup.database_url)),
        "broker": (
            f"broker, vhost {setup.installation.vhost!r}",
            setup.settings.management_url.get_secret_value(),
        ),
    }
    for server in setup.found:
        title, url = shown[server]
        typer.echo(f"{title} on {urlsplit(url).netloc.rpartition('@')[2]}:")
        if server == "broker" and not setup.has_vhost:
            typer.echo(f"  {AccountChange.CREATE:8}the vhost")
        for step in steps:
            if step.server == server:
                typer.echo(str(step))


def _change(setup: _Setup, steps: Sequence[AccountStep], folder: Path, *, writes_definitions: bool) -> None:
    # Files first: a password that exists only on a server would be lost.
    with _file_errors(folder):
        for login in setup.logins.values():
            write_pending(login, folder, **setup.settings.urls)
    if "database" in setup.found:
        with _database_errors(setup.database_url):
            asyncio.run(change_roles(setup.database_url, setup.installation, steps, setup.logins))
    if setup.api is not None:
        with _server_errors(_BROKER, hint=f"{_EXPECTED}; run the command again to finish"):
            setup.api.change_accounts(setup.installation.vhost, steps, setup.logins)
    elif writes_definitions:
        _write_definitions(setup, folder)
    with _file_errors(folder):
        files = complete_files(folder, BROKER)
    typer.echo("credentials: " + ", ".join(str(file) for file in files))
    if services := to_restart(steps):
        named = ", ".join(_RESTARTS[service] for service in services)
        typer.echo(
            f"restart with the new credentials: {named}; until then they keep their connections, and cannot "
            "open new ones"
        )


def _write_definitions(setup: _Setup, folder: Path) -> None:
    text = json.dumps(definitions(setup.installation.vhost, setup.logins.values()), indent=2) + "\n"
    file = folder / _DEFINITIONS
    with _file_errors(folder):
        write_privately(file, text)
    typer.echo(
        f"broker: not changed; run on its host: rabbitmqctl import_definitions {file} (it changes the "
        "passwords of accounts that exist under these names)"
    )


@contextmanager
def _management(settings: SetupSettings, *, reads: bool) -> Iterator[ManagementApi | None]:
    url = settings.management_url.get_secret_value()
    if not (reads and url):
        yield None
        return
    with _server_errors(_BROKER, hint=_EXPECTED):
        api = ManagementApi(url)
    with api:
        yield api


def _database_errors(url: str) -> AbstractContextManager[None]:
    return _server_errors("TURNSTILE_DATABASE_URL", place=f"{shown_url(url)}: ")


@contextmanager
def _server_errors(setting: str, *, place: str = "", hint: str = "") -> Iterator[None]:
    """Turn what a server refuses, or that it cannot be reached, into CommandFailed."""
    try:
        yield
    except (SetupRefused, asyncpg.InsufficientPrivilegeError) as error:
        after = hint.removeprefix(_EXPECTED)
        raise CommandFailed(f"{setting}: {error}{after}", exit_code=ExitCode.FAILED) from None
    except (
        OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError, httpx.HTTPError,
        httpx.InvalidURL,
    ) as error:  # fmt: skip
        reason = str(error) or type(error).__name__
        raise CommandFailed(f"{setting}: {place}{reason}{hint}", exit_code=ExitCode.UNREACHABLE) from None


@contextmanager
def _file_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"--credentials: {folder}: {error.strerror}", exit_code=ExitCode.USAGE) from None
