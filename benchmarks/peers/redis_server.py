"""A private Redis server, for the systems whose limits live there.

In: a folder. Out: a running server on a free loopback port, and its URL; or `LocalServersError` that says why
not. It keeps nothing on the disk. `localservers` runs it, and ends it with its owner.
"""

import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from turnstile.localservers.errors import MissingBinaries
from turnstile.localservers.packages import install, install_command, may_install
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
)

_PROGRAM: Final = "redis-server"
_PACKAGE: Final = "redis-server"
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 1.0


class RedisServer:
    """A Redis server of our own."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self._process = process
        self.url = f"redis://{LOOPBACK}:{port}/0"

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start a server; return when it answers. Where it is not installed and we may, install it first."""
        program = _find()
        user = server_user("redis")
        server_folder(folder, user)
        port = free_port()
        command = [program, "--bind", LOOPBACK, "--port", str(port), "--dir", str(folder)]
        process = ServerProcess.start(
            "redis",
            [*command, "--save", "", "--appendonly", "no"],
            folder=folder,
            environment={"HOME": str(folder), "LC_ALL": "C"},
            user=user,
            last_signal=signal.SIGKILL,
            grace_seconds=_STOP_SECONDS,
        )
        server = cls(process, port)
        try:
            wait_until_ready(lambda: _answers(port), process, _START_SECONDS)
        except BaseException:
            server.stop()
            raise
        return server

    def version(self) -> str:
        """Return its version."""
        said = run_once([_find(), "--version"], folder=Path("/"), environment={"LC_ALL": "C"}, user=None)
        return said.partition("v=")[2].split()[0]

    def stop(self) -> None:
        """Stop it."""
        self._process.stop(signal.SIGTERM, _STOP_SECONDS)


def _find() -> str:
    found = shutil.which(_PROGRAM)
    if found is None and may_install():
        install({"Redis": _PACKAGE})
        found = shutil.which(_PROGRAM)
    if found is None:
        raise MissingBinaries(["Redis"], install_command([_PACKAGE]))
    return found


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False
