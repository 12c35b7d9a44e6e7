"""Runs PostgreSQL's own `pg_dump` and `pg_restore`; opens sessions of a server for them.

In: a database URL, and the folder of the programs if they are not on PATH. Out: a dump, or a restored
database; or `ProgramFailed`, whose message says what to do. The password is passed in the environment,
because every user of a machine can read the arguments of its processes.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from turnstile.common.database import DatabaseHosts
from turnstile.common.database_session import libpq_options
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.urls import driver_url

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

_VERSION: Final = re.compile(r"\b(\d+)(?:\.\d+)*\b")
_VERSION_SECONDS: Final = 10.0
_END_SECONDS: Final = 10.0
_EXCERPT_MAX: Final = 1500
_PASSWORD: Final = "password="


class ProgramFailed(TurnstileError):
    """A program is missing, too old, or failed; the message says what to do."""


async def find_program(name: str, *, folder: str, server_version: int) -> str:
    """Return the path of a program of PostgreSQL that is not older than the server, by major version.

    `folder` is that of the programs; empty: PATH. Raises ProgramFailed.
    """
    path = shutil.which(name, path=folder or None)
    if path is None:
        raise ProgramFailed(
            f"{name} was not found in {folder or 'the folders of PATH'}; {_remedy(server_version)}"
        )
    version = await _version_of(path)
    if version < server_version:
        raise ProgramFailed(
            f"{path} is of PostgreSQL {version}, older than the server, PostgreSQL {server_version}; "
            f"{_remedy(server_version)}"
        )
    return path


async def dump(path: str, url: str, *, file: Path, snapshot: str) -> None:
    """Write the database to `file`, in pg_dump's custom format, as an exported snapshot sees it.

    Owners and privileges are left out: the roles of one server need not exist on another one. Raises
    ProgramFailed.
    """
    options = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}"]
    await _run([path, *options, f"--file={file}"], url)


async def restore(path: str, url: str, *, file: Path) -> None:
    """Load a dump into a database, in one transaction. Raises ProgramFailed; then nothing was changed."""
    options = ["--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    await _run([path, *options], url, last=[str(file)])


async def check_dump(path: str, file: Path) -> None:
    """Raise ProgramFailed unless `file` is a dump that this `pg_restore` can read."""
    await _ended([path, "--list", str(file)], os.environ)


async def _run(command: Sequence[str], url: str, *, last: Sequence[str] = ()) -> None:
    public_url, password = _split_password(driver_url(url))
    options = f"{os.environ.get('PGOPTIONS', '')} {libpq_options()}"
    environment = {**os.environ, "PGAPPNAME": "turnstile backup", "PGOPTIONS": options}
    if password is not None:
        environment["PGPASSWORD"] = password
    await _ended([*command, f"--dbname={public_url}", *last], environment)


async def _ended(command: Sequence[str], environment: Mapping[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            except TimeoutError:
                process.kill()
    if process.returncode != 0:
        text = errors.decode(errors="replace").strip()
        raise ProgramFailed(f"{command[0]} failed: {text[-_EXCERPT_MAX:]}")


async def _version_of(path: str) -> int:
    process = await asyncio.create_subprocess_exec(
        path, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        answer, _ = await asyncio.wait_for(process.communicate(), _VERSION_SECONDS)
    except TimeoutError:
        process.kill()
        raise ProgramFailed(f"{path} --version did not end within {_VERSION_SECONDS:g} s") from None
    found = _VERSION.search(answer.decode(errors="replace"))
    if process.returncode != 0 or found is None:
        raise ProgramFailed(f"{path} --version names no version; expected a program of PostgreSQL")
    return int(found[1])


def _remedy(version: int) -> str:
    return (
        f"install the client programs of PostgreSQL {version} or later (Debian: apt-get install "
        f"postgresql-client-{version}), or name their folder: "
        f"TURNSTILE_POSTGRESQL_BIN=/usr/lib/postgresql/{version}/bin"
    )


def _split_password(url: str) -> tuple[str, str | None]:
    """Return the URL without its password, and the password, if any."""
    parts = urlsplit(url)
    account, at, hosts = parts.netloc.rpartition("@")
    user, colon, password = account.partition(":")
    query = parts.query.split("&") if parts.query else []
    named = [part.removeprefix(_PASSWORD) for part in query if part.startswith(_PASSWORD)]
    rest = "&".join(part for part in query if not part.startswith(_PASSWORD))
    public_url = urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}", query=rest))
    found = [*named, *([password] if colon else [])]
    return public_url, unquote(found[0]) if found else None


async def connect_as(application_name: str, url: str) -> "Connection":
    """Connect to the first host that accepts; raises the error of the last one."""
    hosts = DatabaseHosts(url, connect_seconds=10.0)
    settings = {"application_name": application_name}
    connection: Connection = await hosts.connect(server_settings=settings)
    return connection


async def server_version(connection: "Connection") -> int:
    """Return the major version of the server, like 16."""
    return int(await connection.fetchval("SHOW server_version_num")) // 10_000
