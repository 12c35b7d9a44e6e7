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
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
import httpx
import typer

from turnstile.common.cli import (
    CommandFailed,
    with_options,
)
from turnstile.common.exit_codes import ExitCode
from turnstile.common.settings import DatabaseSettings, read_settings
from turnstile.common.urls import shown_url
from turnstile.executor.cli.confirmation import YesOption, confirm
from turnstile.executor.permissions.broker import BrokerAccount, ManagementApi, definitions
from turnstile.executor.permissions.credentials import (
    Login,
    broker_hash,
    choose_login,
    complete_files,
    installation_of,
    read_stored,
    write_pending,
    write_privately,
)
from turnstile.executor.permissions.database import (
    GROUPS,
    Roles,
    SetupRefused,
    change_roles,
    check_password,
    read_roles,
)
from turnstile.executor.permissions.plan import (
    FORMER_PREFIX,
    PREFIX_BYTES_MAX,
    SERVICES,
    AccountChange,
    AccountStep,
    Installation,
    Present,
    Server,
    Users,
    account_name,
    choose_prefix,
    default_prefix,
    plan_account,
    prefixes_in_use,
    remedies,
    to_restart,
)
from turnstile.executor.permissions.policies import policies_that_drop
from turnstile.executor.settings import ManagementSettings

_DEFINITIONS: Final = "rabbitmq-definitions.json"
_DESTROYS: Final = "--rotate replaces passwords, and who uses the present ones can no longer connect"
_RESTARTS: Final = {"executor": "all executors", "worker": "all workers", "client": "all clients over AMQP"}
T = TypeVar("T")


class SetupSettings(ManagementSettings, DatabaseSettings):
    """Settings of `setup-permissions`: the URLs of administrators."""

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the services' files, by the name of their setting."""
        return {
            "database_url": self.database_url.get_secret_value(),
            "amqp_url": self.amqp_url.get_secret_value(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator asks for."""

    folder: Path
    prefix: str | None
    dry_run: bool
    rotate: bool
    yes: bool
    database: bool
    broker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What both servers have; None for a server that is not read."""

    roles: Roles | None
    accounts: Mapping[str, BrokerAccount] | None
    has_vhost: bool

    @property
    def users(self) -> dict[Server, Users]:
        """The users of each account on each server."""
        vhosts = {name: account.vhosts for name, account in (self.accounts or {}).items()}
        return {"database": self.roles.users if self.roles else {}, "broker": vhosts}


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
            "accounts in use, else turnstile-DATABASE-VHOST without repeated words]",
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
    options = Options(
        folder=credentials,
        prefix=prefix,
        dry_run=dry_run,
        rotate=rotate,
        yes=yes,
        database=database,
        broker=broker,
    )
    with _management(settings, reads=broker) as api:
        _set_up(settings, options, api)


def _set_up(settings: SetupSettings, options: Options, api: ManagementApi | None) -> None:
    installation = installation_of(**settings.urls)
    stored = _stored_prefix(options.folder, installation)
    default = default_prefix(installation)
    candidates = {options.prefix} if options.prefix else {stored or default, default, FORMER_PREFIX}
    found = _read(settings, installation, candidates, api, reads_database=options.database)
    if found.roles:
        # A pooler may know the database by another name.
        installation = replace(installation, database=found.roles.database)
    used = prefixes_in_use(installation, candidates, found.users)
    logins = _choose_logins(options, options.prefix or choose_prefix(default, stored=stored, used=used))
    steps = _plan(settings, installation, found, logins, rotate=options.rotate)
    _print_plan(settings, options, installation, found, steps)
    _refuse(steps)
    if options.dry_run:
        typer.echo("nothing was changed (--dry-run)")
        _check_policies(installation, api)
        return
    if options.rotate:
        confirm(lambda: "Set new passwords?", yes=options.yes, destroys=_DESTROYS)
    # Files first: a password that exists only on a server would be lost.
    _write_pending(settings, logins, options.folder)
    if found.roles:
        _in_database(settings, change_roles(settings.urls["database_url"], installation, steps, logins))
    if api is not None:
        with _broker_errors(remedy="run the command again to finish"):
            api.change_accounts(installation.vhost, steps, logins)
    elif options.broker:
        _write_definitions(installation, logins, options.folder)
    typer.echo("credentials: " + ", ".join(str(file) for file in _complete(options.folder)))
    _print_restarts(steps)
    _check_policies(installation, api)


def _check_policies(installation: Installation, api: ManagementApi | None) -> None:
    """Raise CommandFailed where a policy would let the broker drop confirmed messages."""
    if api is None:
        return
    with _broker_errors():
        found = policies_that_drop(api, installation.vhost)
    if found:
        raise CommandFailed("; ".join(found), exit_code=ExitCode.FAILED)


def _stored_prefix(folder: Path, installation: Installation) -> str | None:
    """Return the prefix of the accounts in the folder; raises CommandFailed if they are another one's."""
    prefix = None
    for service in SERVICES:
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
    prefixes: Collection[str],
    api: ManagementApi | None,
    *,
    reads_database: bool,
) -> Found:
    names = {account_name(prefix, service) for prefix in prefixes for service in SERVICES}
    roles, accounts, has_vhost = None, None, False
    if reads_database:
        roles = _in_database(settings, read_roles(settings.urls["database_url"], names))
    if api is not None:
        with _broker_errors():
            accounts, has_vhost = api.read_accounts(names), api.has_vhost(installation.vhost)
    return Found(roles=roles, accounts=accounts, has_vhost=has_vhost)


def _choose_logins(options: Options, prefix: str) -> dict[str, Login]:
    choose = functools.partial(choose_login, rotate=options.rotate)
    try:
        return {service: choose(service, prefix, options.folder, os.environ) for service in SERVICES}
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=ExitCode.USAGE) from None


def _plan(
    settings: SetupSettings,
    installation: Installation,
    found: Found,
    logins: Mapping[str, Login],
    *,
    rotate: bool,
) -> list[AccountStep]:
    plan = functools.partial(plan_account, installation=installation, rotate=rotate)
    steps = []
    for login in logins.values():
        if found.roles and login.service in GROUPS:
            role = None
            if login.name in found.roles.users:
                check = asyncio.run(check_password(settings.urls["database_url"], login))
                role = Present(users=found.roles.users[login.name], password=check)
            steps.append(plan("database", login.service, login.name, present=role, source=login.source))
        if found.accounts is not None:
            account = found.accounts.get(login.name)
            present = account.present(installation.vhost, login) if account else None
            steps.append(plan("broker", login.service, login.name, present=present, source=login.source))
    return steps


def _print_plan(
    settings: SetupSettings,
    options: Options,
    installation: Installation,
    found: Found,
    steps: Sequence[AccountStep],
) -> None:
    if found.roles:
        host = urlsplit(shown_url(settings.urls["database_url"])).netloc.rpartition("@")[2]
        typer.echo(f"database {installation.database!r} on {host}:")
        _print_steps(steps, "database")
    if found.accounts is not None:
        host = urlsplit(settings.management_url.get_secret_value()).netloc.rpartition("@")[2]
        typer.echo(f"broker, vhost {installation.vhost!r} on {host}:")
        if not found.has_vhost:
            typer.echo(f"  {AccountChange.CREATE:8}the vhost")
        _print_steps(steps, "broker")
    elif options.broker:
        typer.echo(
            f"broker, vhost {installation.vhost!r}: not read, since TURNSTILE_MANAGEMENT_URL is not set; "
            f"its definitions are written to {options.folder / _DEFINITIONS}"
        )


def _print_steps(steps: Sequence[AccountStep], server: Server) -> None:
    for step in steps:
        if step.server == server:
            typer.echo(str(step))


def _refuse(steps: Sequence[AccountStep]) -> None:
    if any(step.change is AccountChange.REFUSE for step in steps):
        raise CommandFailed(f"nothing was changed: {remedies(steps)}", exit_code=ExitCode.FAILED)


def _write_pending(settings: SetupSettings, logins: Mapping[str, Login], folder: Path) -> None:
    with _file_errors(folder):
        for login in logins.values():
            write_pending(login, folder, **settings.urls)


def _complete(folder: Path) -> list[Path]:
    with _file_errors(folder):
        return complete_files(folder, SERVICES)


def _write_definitions(installation: Installation, logins: Mapping[str, Login], folder: Path) -> None:
    names = {service: login.name for service, login in logins.items()}
    hashes = {service: broker_hash(login.password) for service, login in logins.items()}
    file = folder / _DEFINITIONS
    with _file_errors(folder):
        write_privately(file, json.dumps(definitions(installation.vhost, names, hashes), indent=2) + "\n")
    typer.echo(
        f"broker: not changed; run on its host: rabbitmqctl import_definitions {file} (it changes the "
        "passwords of accounts that exist under these names)"
    )


def _print_restarts(steps: Sequence[AccountStep]) -> None:
    if services := to_restart(steps):
        named = ", ".join(_RESTARTS[service] for service in services)
        typer.echo(
            f"restart with the new credentials: {named}; until then they keep their connections, and cannot "
            "open new ones"
        )


def _in_database(settings: SetupSettings, work: Coroutine[None, None, T]) -> T:
    try:
        return asyncio.run(work)
    except (SetupRefused, asyncpg.InsufficientPrivilegeError) as error:
        raise CommandFailed(f"TURNSTILE_DATABASE_URL: {error}", exit_code=ExitCode.FAILED) from None
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = str(error) or type(error).__name__
        url = shown_url(settings.urls["database_url"])
        raise CommandFailed(
            f"TURNSTILE_DATABASE_URL: {url}: {reason}", exit_code=ExitCode.UNREACHABLE
        ) from None


@contextmanager
def _management(settings: SetupSettings, *, reads: bool) -> Iterator[ManagementApi | None]:
    url = settings.management_url.get_secret_value()
    if not (reads and url):
        yield None
        return
    with _broker_errors():
        api = ManagementApi(url)
    with api:
        yield api


@contextmanager
def _broker_errors(*, remedy: str = "") -> Iterator[None]:
    after = remedy and f"; {remedy}"
    try:
        yield
    except SetupRefused as error:
        raise CommandFailed(f"TURNSTILE_MANAGEMENT_URL: {error}{after}", exit_code=ExitCode.FAILED) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise CommandFailed(
            f"TURNSTILE_MANAGEMENT_URL: {reason}; expected http://user:password@host:15672{after}",
            exit_code=ExitCode.UNREACHABLE,
        ) from None


@contextmanager
def _file_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"--credentials: {folder}: {error.strerror}", exit_code=ExitCode.USAGE) from None
