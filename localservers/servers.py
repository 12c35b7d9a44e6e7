"""Both servers at once: what `make demo`, `make up` and the tests start.

In: a folder to keep the data in, or none for a scratch folder that is deleted at the end. Out: a running
PostgreSQL and RabbitMQ, started side by side, stopped together. `postgresql.py` and `rabbitmq.py` are next.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from turnstile.localservers.binaries import install_missing
from turnstile.localservers.errors import LocalServersError
from turnstile.localservers.postgresql import PostgresServer
from turnstile.localservers.rabbitmq import CONSUMER_TIMEOUT_SECONDS, RabbitServer
from turnstile.localservers.scratch import ScratchFolder
from turnstile.localservers.threads import to_the_end
from turnstile.localservers.tls import ServerTls


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
    def start(
        cls,
        folder: Path | None = None,
        *,
        durable: bool = True,
        consumer_timeout_seconds: float = CONSUMER_TIMEOUT_SECONDS,
        tls: ServerTls | None = None,
    ) -> Self:
        """Start both servers; return when both accept connections.

        `durable=False` trades what survives a crash of the machine (not of a server) for speed.
        Raises `MissingBinaries` where a server is not installed and may not be, else `ServerFailed`.
        """
        install_missing()
        scratch: ScratchFolder | None = None
        if folder is None:
            scratch = ScratchFolder.create()
            folder = scratch.path
        place = folder.resolve()
        try:
            postgresql, rabbitmq = _start_both(
                start_postgresql=lambda: PostgresServer.start(place / "postgresql", durable=durable, tls=tls),
                start_rabbitmq=lambda: RabbitServer.start(
                    place / "rabbitmq", consumer_timeout_seconds=consumer_timeout_seconds, tls=tls
                ),
            )
        except BaseException:
            if scratch:
                scratch.delete()
            raise
        return cls(postgresql=postgresql, rabbitmq=rabbitmq, folder=place, scratch=scratch)

    def versions(self) -> dict[str, str]:
        """Return the version of each, by its name for people."""
        return {"PostgreSQL": self.postgresql.version(), "RabbitMQ": self.rabbitmq.version()}

    def stop(self) -> None:
        """Stop both servers; delete the scratch folder, but keep a folder that was given, in good order."""
        if self._scratch:
            # Nobody will read these data again, so nobody waits for an orderly end.
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
async def running_servers(*, durable: bool = True) -> AsyncIterator[LocalServers]:
    """Run both servers in a scratch folder; nothing stays of a start that is cancelled."""
    starting = asyncio.create_task(asyncio.to_thread(LocalServers.start, durable=durable), name="servers")
    try:
        servers = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Their start cannot be broken off, and what it started must not stay.
        with suppress(LocalServersError):
            await to_the_end((await starting).stop)
        raise
    try:
        yield servers
    finally:
        await to_the_end(servers.stop)


def _start_both(
    *, start_postgresql: Callable[[], PostgresServer], start_rabbitmq: Callable[[], RabbitServer]
) -> tuple[PostgresServer, RabbitServer]:
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="start") as pool:
        rabbitmq = pool.submit(start_rabbitmq)
        postgresql = pool.submit(start_postgresql)
    # Both have ended their start by now; what did come up must not outlive the one that did not.
    if postgresql.exception() is not None and rabbitmq.exception() is None:
        rabbitmq.result().kill()
    if rabbitmq.exception() is not None and postgresql.exception() is None:
        postgresql.result().stop("immediate")
    return postgresql.result(), rabbitmq.result()
