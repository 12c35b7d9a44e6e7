"""Both servers at once: what `make demo`, `make up` and the tests start.

In: a folder to keep the data in, or none for a scratch folder that is deleted at the end. Out: a running
PostgreSQL and RabbitMQ, started side by side, stopped together. `postgresql.py` and `rabbitmq.py` are next.
"""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from localservers.binaries import install_missing
from localservers.postgresql import PostgresServer
from localservers.rabbitmq import RabbitServer


class LocalServers:
    """A private PostgreSQL and a private RabbitMQ; as a context manager it stops them at the end."""

    def __init__(
        self, *, postgresql: PostgresServer, rabbitmq: RabbitServer, folder: Path, is_scratch: bool
    ) -> None:
        self.postgresql = postgresql
        self.rabbitmq = rabbitmq
        self.folder = folder
        self._is_scratch = is_scratch

    @classmethod
    def start(cls, folder: Path | None = None, *, durable: bool = True) -> Self:
        """Start both servers; return when both accept connections.

        `durable=False` trades what survives a crash of the machine (not of a server) for speed.
        Raises `MissingBinaries` where a server is not installed and may not be, else `ServerFailed`.
        """
        install_missing()
        is_scratch = folder is None
        place = Path(tempfile.mkdtemp(prefix="turnstile-")) if folder is None else folder.resolve()
        place.mkdir(parents=True, exist_ok=True)
        if is_scratch:
            # The servers' own users pass through to their folders, which only they can read.
            place.chmod(0o711)
        try:
            postgresql, rabbitmq = _start_both(place, durable=durable)
        except BaseException:
            if is_scratch:
                shutil.rmtree(place, ignore_errors=True)
            raise
        return cls(postgresql=postgresql, rabbitmq=rabbitmq, folder=place, is_scratch=is_scratch)

    def stop(self) -> None:
        """Stop both servers; delete the scratch folder, but keep a folder that was given, in good order."""
        if self._is_scratch:
            # Nobody will read these data again, so nobody waits for an orderly end.
            self.rabbitmq.kill()
            self.postgresql.stop("immediate")
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            with ThreadPoolExecutor(max_workers=2, thread_name_prefix="stop") as pool:
                for stopped in [pool.submit(self.rabbitmq.stop), pool.submit(self.postgresql.stop)]:
                    stopped.result()
        self.rabbitmq.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _start_both(folder: Path, *, durable: bool) -> tuple[PostgresServer, RabbitServer]:
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="start") as pool:
        rabbitmq = pool.submit(RabbitServer.start, folder / "rabbitmq")
        postgresql = pool.submit(PostgresServer.start, folder / "postgresql", durable=durable)
    # Both have ended their start by now; what did come up must not outlive the one that did not.
    if postgresql.exception() is not None and rabbitmq.exception() is None:
        rabbitmq.result().kill()
    if rabbitmq.exception() is not None and postgresql.exception() is None:
        postgresql.result().stop("immediate")
    return postgresql.result(), rabbitmq.result()
