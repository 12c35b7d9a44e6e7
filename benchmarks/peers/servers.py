"""The servers of all contestants (PostgreSQL, RabbitMQ, where possible Redis), and a fresh site per session.

A site is a database, a vhost and a key prefix of its own. `localservers` runs all servers and ends them with
their owner.
"""

import asyncio
import secrets
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from benchmarks.peers.job import AMQP_URL, DATABASE_URL, REDIS_PREFIX, REDIS_URL
from turnstile.localservers import LocalServers, LocalServersError, MissingBinaries
from turnstile.localservers.binaries import install, install_command, may_install
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    run_once,
    server_folder,
    server_user,
    wait_until_ready,
)

_REDIS: Final = "redis-server"
"""The name of the program and of the Debian package."""
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_PROBE_SECONDS: Final = 1.0


class RedisServer:
    """A private Redis server on a free loopback port, without persistence."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self._process = process
        self.url = f"redis://{LOOPBACK}:{port}/0"

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start a server, installing it if possible; return when it answers. Raises LocalServersError."""
        program = _find_redis()
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
        text = run_once(
            [_find_redis(), "--version"], folder=Path("/"), environment={"LC_ALL": "C"}, user=None
        )
        return text.partition("v=")[2].split()[0]

    def stop(self) -> None:
        """Stop it."""
        self._process.stop(signal.SIGTERM, _STOP_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The database, vhost and key prefix of one session."""

    environment: Mapping[str, str]
    """Environment variables of its processes."""
    scratch: Path
    """A folder that is deleted with the servers."""
    database_url: str
    postgresql_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """All servers of a run."""

    local: LocalServers
    redis: RedisServer | None
    why_no_redis: str = ""

    def versions(self) -> dict[str, str]:
        """Return the version of each server; blocking, so call it in a thread."""
        found = self.local.versions()
        return found | ({"Redis": self.redis.version()} if self.redis else {})

    @asynccontextmanager
    async def site(self) -> AsyncIterator[Site]:
        """Yield a site for one session; a contestant creates its own tables."""
        name = f"peers_{secrets.token_hex(4)}"
        database_url = await asyncio.to_thread(self.local.postgresql.create_database, name)
        amqp_url = await asyncio.to_thread(self.local.rabbitmq.create_vhost, name)
        try:
            environment = {
                DATABASE_URL: database_url,
                AMQP_URL: amqp_url,
                REDIS_PREFIX: name,
                "TURNSTILE_DATABASE_URL": database_url,
                "TURNSTILE_AMQP_URL": amqp_url,
                **({REDIS_URL: self.redis.url} if self.redis else {}),
            }
            yield Site(
                environment=environment,
                scratch=self.local.folder,
                database_url=database_url,
                postgresql_pid=self.local.postgresql.pid,
            )
        finally:
            await asyncio.to_thread(self.local.rabbitmq.delete_vhost, name)
            await asyncio.to_thread(self.local.postgresql.drop_database, name)


@contextmanager
def all_servers() -> Iterator[Servers]:
    """Start PostgreSQL, RabbitMQ and, where possible, Redis; stop them at the end."""
    with LocalServers.start(durable=True) as local:
        redis, why = None, ""
        try:
            redis = RedisServer.start(local.folder / "redis")
        except LocalServersError as error:
            why = " ".join(str(error).split())
        try:
            yield Servers(local=local, redis=redis, why_no_redis=why)
        finally:
            if redis is not None:
                redis.stop()


def _find_redis() -> str:
    found = shutil.which(_REDIS)
    if found is None and may_install():
        install({"Redis": _REDIS})
        found = shutil.which(_REDIS)
    if found is None:
        raise MissingBinaries(["Redis"], install_command([_REDIS]))
    return found


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")
    return False
