"""PostgreSQL servers: databases on any server by URL, and a private server on a loopback port.

`DatabaseServer` creates and drops databases; it is synchronous and may be called while an event loop runs in
the same thread. `PostgresServer` runs a server with its data in a folder; a folder with data is used again.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from turnstile.localservers.binaries import find_postgresql
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
    write_for_server,
)

_STATEMENT_SECONDS = 60.0
_MAINTENANCE_DATABASE = "postgres"


class DatabaseServer:
    """A PostgreSQL server, private or not; `server_url` may name any of its databases."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url

    def url(self, database: str = _MAINTENANCE_DATABASE) -> str:
        """Return the URL of a database, which may be missing."""
        return urlunsplit(urlsplit(self._server_url)._replace(path="/" + quote(database, safe="")))

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` (without open connections), and return its URL."""
        # FILE_COPY costs two checkpoints, which are cheap where nothing waits for the disk.
        copied = f" TEMPLATE {_quoted(template)} STRATEGY FILE_COPY" if template else ""
        self.execute(f"CREATE DATABASE {_quoted(name)}{copied}")
        return self.url(name)

    def has_database(self, name: str) -> bool:
        """Whether a database of this name exists."""
        literal = "'" + name.replace("'", "''") + "'"
        found = f"SELECT EXISTS (SELECT FROM pg_database WHERE datname = {literal})"
        return bool(self._first_value(found, _MAINTENANCE_DATABASE))

    def drop_database(self, name: str) -> None:
        """Drop a database and end its sessions; no effect where it is missing."""
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def version(self) -> str:
        """Return the version of the server, like `15.18`."""
        version: str = self._first_value("SHOW server_version", _MAINTENANCE_DATABASE)
        return version.split(maxsplit=1)[0]

    def execute(self, statement: str, database: str = _MAINTENANCE_DATABASE) -> None:
        """Run one statement outside a transaction block."""
        self._first_value(statement, database)

    def _first_value(self, statement: str, database: str) -> Any:
        # asyncio.run must not nest, and a fixture may run inside a test's event loop.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="database-administration") as thread:
            return thread.submit(asyncio.run, _fetch(self.url(database), statement)).result()


async def _fetch(url: str, statement: str) -> Any:
    """Run a statement and return the first value of its first row, if any."""
    async with asyncio.timeout(_STATEMENT_SECONDS):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


StopMode = Literal["fast", "immediate"]

_SUPERUSER = "postgres"
_SETTINGS_FILE = "turnstile.conf"
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_OPEN_STATES = ("ready", "standby")
# The path of a Unix socket has at most 107 bytes; the server's file name takes 15 of them.
_SOCKET_FOLDER_BYTES_MAX = 90


class PostgresServer(DatabaseServer):
    """A private PostgreSQL server; every local user is trusted as its superuser."""

    def __init__(self, *, folder: Path, programs: Path, port: int, account: str | None) -> None:
        super().__init__(f"postgresql://{_SUPERUSER}@{LOOPBACK}:{port}/postgres")
        self.folder = folder
        self.port = port
        self._programs = programs
        self._account = account
        self._process = self._run()

    @classmethod
    def start(cls, folder: Path, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> Self:
        """Start a server with its data in `folder`; return when it accepts connections."""
        programs = find_postgresql()
        user = server_user("postgres")
        server_folder(folder, user)
        port = free_port("postgresql")
        data = folder / "data"
        if not (data / "PG_VERSION").exists():
            _initialise(programs, data, user, durable=durable)
        every = _settings(folder, port, durable=durable) | dict(settings or {})
        lines = "".join(f"{name} = '{value}'\n" for name, value in every.items())
        write_for_server(data / _SETTINGS_FILE, lines)
        return cls(folder=folder, programs=programs, port=port, account=user)

    @property
    def pid(self) -> int:
        """The postmaster's process id; changes with each restart."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether any process of the server still runs."""
        return self._process.is_running

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server.

        `fast` ends the sessions and writes a checkpoint; `immediate` is a crash that needs recovery.
        """
        self._process.stop(_SIGNALS[mode], _STOP_SECONDS)

    def kill(self) -> None:
        """Kill all processes of the server (SIGKILL): asynchronous commits that are in no file are lost."""
        self._process.kill(_STOP_SECONDS)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs; start it again on its port; return when it accepts connections."""
        self.stop(mode)
        self._process = self._run()

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers."""
        self._process.pause()

    def resume(self) -> None:
        """Resume a frozen server."""
        self._process.resume()

    def _run(self) -> ServerProcess:
        data = self.folder / "data"
        process = ServerProcess.start(
            "postgresql",
            [str(self._programs / "postgres"), "-D", str(data)],
            folder=self.folder,
            environment=_environment(self.folder),
            user=self._account,
            last_signal=_SIGNALS["immediate"],
            grace_seconds=_STOP_SECONDS,
        )
        try:
            wait_until_ready(lambda: _accepts_connections(data, process.pid), process, _START_SECONDS)
        except BaseException:
            process.stop(signal.SIGQUIT, _STOP_SECONDS)
            raise
        return process


def _initialise(programs: Path, data: Path, user: str | None, *, durable: bool) -> None:
    options = [
        "--auth=trust",
        f"--username={_SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    if not durable:
        options.append("--no-sync")
    command = [str(programs / "initdb"), *options, f"--pgdata={data}"]
    run_once(command, folder=data.parent, environment=_environment(data.parent), user=user)
    # After initdb's own settings, such as the kind of shared memory that works on this machine.
    with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write(f"\ninclude '{_SETTINGS_FILE}'\n")


def _settings(folder: Path, port: int, *, durable: bool) -> dict[str, str]:
    sockets = str(folder) if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES_MAX else ""
    kept = "on" if durable else "off"
    return {
        "listen_addresses": LOOPBACK,
        "port": str(port),
        "unix_socket_directories": sockets,
        "max_connections": "200",
        "shared_buffers": "128MB",
        # It may be in memory where it need not be durable.
        "max_wal_size": "2GB" if durable else "256MB",
        "jit": "off",
        # Even `off` writes a commit to the operating system first: it survives a crash of the server.
        "fsync": kept,
        "full_page_writes": kept,
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %u@%d ",
    }


def _environment(folder: Path) -> dict[str, str]:
    # Not inherited: PGDATA, PGPORT, LC_ALL or a password file of the user must not affect a private server.
    return {"HOME": str(folder), "PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _accepts_connections(data: Path, pid: int) -> bool:
    """Read postmaster.pid as `pg_ctl` does: line 1 is the pid, line 8 the state."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    # A stale file of a killed server names another pid.
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() in _OPEN_STATES
