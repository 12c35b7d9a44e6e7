"""Both servers at once: private ones, or those that the environment names for tests.

Private ones start in parallel in a given folder, or in a scratch folder that is deleted at the end.
"""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Self

from turnstile.localservers.binaries import install_missing
from turnstile.localservers.errors import LocalServersError
from turnstile.localservers.postgresql import DatabaseServer, PostgresServer
from turnstile.localservers.processes import run_in_thread
from turnstile.localservers.rabbitmq import BrokerServer, RabbitServer

SERVER_URLS = ("TURNSTILE_TEST_DATABASE_URL", "TURNSTILE_TEST_AMQP_URL", "TURNSTILE_TEST_MANAGEMENT_URL")
"""Variables with the URLs of servers that tests use in place of private ones."""


class ScratchFolder:
    """A folder for temporary data, deleted at the end or, after kill -9, by the next process.

    Its owner holds a lock on a file in it. The kernel drops the lock with the process, so a folder whose file
    can be locked has no owner any more.
    """

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, *, in_memory: bool = False) -> Self:
        """Create an empty folder; delete those of this account that have no owner any more.

        `in_memory`: in the machine's shared memory if that has room, else in its temporary folder.
        """
        _delete_abandoned()
        parent = _MEMORY if in_memory and _has_room(_MEMORY) else None
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent))
        # Servers under other accounts must reach their own folders below it.
        unfinished.chmod(0o711)
        lock = (unfinished / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Renamed only now: under the final name, the folder always has its lock.
        path = unfinished.rename(unfinished.with_name(_PREFIX + unfinished.name.removeprefix(_UNFINISHED)))
        return cls(path, lock)

    def delete(self) -> None:
        """Delete the folder and its content; no process may use it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


class LocalServers:
    """A private PostgreSQL and a private RabbitMQ; as a context manager it stops them at the end."""

    def __init__(
        self,
        *,
        postgresql: PostgresServer,
        rabbitmq: RabbitServer,
        folder: Path,
        scratch: ScratchFolder | None,
    ) -> None:
        self.postgresql = postgresql
        self.rabbitmq = rabbitmq
        self.folder = folder
        self._scratch = scratch

    @classmethod
    def start(cls, folder: Path | None = None, *, durable: bool = True) -> Self:
        """Start both servers; return when both accept connections.

        `durable=False` is faster: a scratch folder is in memory, if there is room, and nothing waits for the
        disk. Data may be lost in a crash of the machine, not of a server.
        Raises `MissingBinaries` where a server is not installed and cannot be, else `ServerFailed`.
        """
        install_missing()
        scratch: ScratchFolder | None = None
        if folder is None:
            scratch = ScratchFolder.create(in_memory=not durable)
            folder = scratch.path
        root = folder.resolve()
        try:
            postgresql, rabbitmq = _start_both(
                start_postgresql=lambda: PostgresServer.start(root / "postgresql", durable=durable),
                start_rabbitmq=lambda: RabbitServer.start(root / "rabbitmq"),
            )
        except BaseException:
            if scratch:
                scratch.delete()
            raise
        return cls(postgresql=postgresql, rabbitmq=rabbitmq, folder=root, scratch=scratch)

    def versions(self) -> dict[str, str]:
        """Return the version of each server by its display name."""
        return {"PostgreSQL": self.postgresql.version(), "RabbitMQ": self.rabbitmq.version()}

    def stop(self) -> None:
        """Stop both servers; delete a scratch folder, or shut down gracefully in a given folder."""
        if self._scratch:
            # The data are deleted: no graceful shutdown.
            self.rabbitmq.kill()
            self.postgresql.stop("immediate")
            self._scratch.delete()
        else:
            with ThreadPoolExecutor(max_workers=2, thread_name_prefix="stop") as pool:
                for stopped in [pool.submit(self.rabbitmq.stop), pool.submit(self.postgresql.stop)]:
                    stopped.result()
        self.rabbitmq.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@asynccontextmanager
async def running_servers(folder: Path | None = None, *, durable: bool = True) -> AsyncIterator[LocalServers]:
    """Run both servers in this folder, or in a scratch folder; a cancelled start leaves no process."""
    starting = asyncio.create_task(
        asyncio.to_thread(LocalServers.start, folder, durable=durable), name="servers"
    )
    try:
        servers = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The start runs in a thread and cannot be interrupted; wait and stop what it started.
        with suppress(LocalServersError):
            await run_in_thread((await starting).stop)
        raise
    try:
        yield servers
    finally:
        await run_in_thread(servers.stop)


@contextmanager
def servers_for_tests() -> Iterator[tuple[DatabaseServer, BrokerServer]]:
    """Yield the servers of TURNSTILE_TEST_DATABASE_URL and so on, or private ones without a variable.

    Raises LocalServersError where only some of the variables are set, and as `LocalServers.start`.
    """
    given = {name: os.environ[name] for name in SERVER_URLS if os.environ.get(name)}
    if not given:
        with LocalServers.start(durable=False) as servers:
            yield servers.postgresql, servers.rabbitmq
        return
    if missing := [name for name in SERVER_URLS if name not in given]:
        raise LocalServersError(f"{', '.join(missing)}: not set, but {', '.join(given)} is; set all or none")
    database_url, amqp_url, management_url = given.values()
    with BrokerServer(amqp_url, management_url) as broker:
        yield DatabaseServer(database_url), broker


def _start_both(
    *, start_postgresql: Callable[[], PostgresServer], start_rabbitmq: Callable[[], RabbitServer]
) -> tuple[PostgresServer, RabbitServer]:
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="start") as pool:
        rabbitmq = pool.submit(start_rabbitmq)
        postgresql = pool.submit(start_postgresql)
    # Both starts are over. If one failed, stop the other.
    if postgresql.exception() is not None and rabbitmq.exception() is None:
        rabbitmq.result().kill()
    if rabbitmq.exception() is not None and postgresql.exception() is None:
        postgresql.result().stop("immediate")
    return postgresql.result(), rabbitmq.result()


_PREFIX = "turnstile-"
_UNFINISHED = "new-turnstile-"
_LOCK = "owner.lock"
_MEMORY = Path("/dev/shm")
_MEMORY_FREE_BYTES_MIN = 2 * 1024**3
"""Three pairs of servers, as in `make test`, use less than half of it."""


def _has_room(folder: Path) -> bool:
    # In a container it often has 64 MiB.
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _MEMORY_FREE_BYTES_MIN


def _delete_abandoned() -> None:
    temporary = Path(tempfile.gettempdir())
    for path in chain(temporary.glob(f"{_PREFIX}*"), _MEMORY.glob(f"{_PREFIX}*")):
        try:
            # Never a folder or a link of another account.
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            with (path / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
