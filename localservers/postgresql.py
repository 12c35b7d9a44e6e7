"""A private PostgreSQL server: one data folder, one loopback port, nobody else's.

In: a folder and whether what is committed must survive a crash of the machine, or another server to follow as
its standby. Out: a running server and URLs of its databases. A folder that was used before is taken up again.
`processes.py` runs it, `databases.py` speaks to it.
"""

import os
import signal
from pathlib import Path
from typing import Literal, Self

from turnstile.localservers.binaries import find_pg_basebackup, find_postgresql
from turnstile.localservers.databases import DatabaseServer
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
    write_for_server,
)
from turnstile.localservers.tls import ServerTls, postgresql_tls

StopMode = Literal["fast", "immediate"]

_SUPERUSER = "postgres"
_SETTINGS_FILE = "turnstile.conf"
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_OPEN_STATES = ("ready", "standby")
# The path of a Unix socket holds at most 107 bytes, of which the server's own file name takes 15.
_SOCKET_FOLDER_BYTES_MAX = 90


class PostgresServer(DatabaseServer):
    """A PostgreSQL server of our own; every local user is trusted as its superuser."""

    def __init__(self, *, folder: Path, programs: Path, port: int, account: str | None) -> None:
        super().__init__(f"postgresql://{_SUPERUSER}@{LOOPBACK}:{port}/postgres")
        self.folder = folder
        self.port = port
        self._programs = programs
        self._account = account
        self._process = self._run()

    @classmethod
    def start(cls, folder: Path, *, durable: bool = True, tls: ServerTls | None = None) -> Self:
        """Start a server whose data live in `folder`; return when it accepts connections."""
        programs = find_postgresql()
        user = server_user("postgres")
        server_folder(folder, user)
        port = free_port()
        data = folder / "data"
        if not (data / "PG_VERSION").exists():
            _initialise(programs, data, user, durable=durable)
        settings = _settings(folder, port, durable=durable)
        if tls is not None:
            settings |= postgresql_tls(folder, tls, user)
        write_for_server(
            data / _SETTINGS_FILE, "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        )
        return cls(folder=folder, programs=programs, port=port, account=user)

    @classmethod
    def follow(cls, primary: "PostgresServer", folder: Path, *, durable: bool = True) -> Self:
        """Start a standby: a copy of `primary` that takes over each change, and may be read."""
        user = server_user("postgres")
        server_folder(folder, user)
        command = [
            str(find_pg_basebackup()),
            f"--dbname={primary.url()}",
            f"--pgdata={folder / 'data'}",
            "--write-recovery-conf",
            "--checkpoint=fast",
        ]
        run_once(command, folder=folder, environment=_environment(folder), user=user)
        return cls.start(folder, durable=durable)

    def wait_for_standby(self) -> None:
        """Answer no commit from now on before a standby has it too, on disk."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make a primary of a standby; return when it takes writes."""
        self.execute("SELECT pg_promote(true, 60)")

    @property
    def pid(self) -> int:
        """The postmaster's process id; changes with each restart."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether any process of the server is left."""
        return self._process.is_running

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server.

        `fast` ends the sessions and writes a checkpoint; `immediate` is a crash that recovery must repair.
        """
        self._process.stop(_SIGNALS[mode], _STOP_SECONDS)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again on the same port; return when it accepts connections."""
        self.stop(mode)
        self._process = self._run()

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers."""
        self._process.pause()

    def resume(self) -> None:
        """Let a frozen server run on."""
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
    # After what initdb found out about this machine, such as which kind of shared memory works.
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
        "max_wal_size": "2GB",
        "jit": "off",
        # Even so a commit is with the operating system when it is answered: a crash of the server keeps it.
        "fsync": kept,
        "full_page_writes": kept,
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %u@%d ",
    }


def _environment(folder: Path) -> dict[str, str]:
    # Nothing of ours: PGDATA, PGPORT, LC_ALL or a password file of the user must not reach a private server.
    return {"HOME": str(folder), "PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _accepts_connections(data: Path, pid: int) -> bool:
    """Read what `pg_ctl` reads: line 1 of postmaster.pid is the pid, line 8 the state."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    # A stale file of a killed server names another pid.
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() in _OPEN_STATES
