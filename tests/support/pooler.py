"""A real pgbouncer in front of a database."""

import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.support.sources import program_of
from turnstile.localservers.ports import LOOPBACK, free_port
from turnstile.localservers.processes import (
    ServerProcess,
    server_folder,
    server_user,
    wait_until_ready,
    write_for_server,
)

_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5.0


@contextmanager
def pgbouncer(database_url: str, mode: str, settings: str = "") -> Iterator[str]:
    """Run a pgbouncer that has room for several executors; yield the URL of the database behind it."""
    program = program_of("pgbouncer", "pgbouncer")
    parts, port = urlsplit(database_url), free_port()
    folder = Path(tempfile.mkdtemp(prefix="turnstile-pooler-"))
    user = server_user("postgres")
    server_folder(folder, user)
    write_for_server(folder / "users.txt", f'"{parts.username}" ""\n')
    write_for_server(
        folder / "pgbouncer.ini",
        f"""[databases]
* = host={parts.hostname} port={parts.port}
[pgbouncer]
listen_addr = {LOOPBACK}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = {mode}
default_pool_size = 60
{settings}
""",
    )

    def answers() -> bool:
        with socket.socket() as end:
            return end.connect_ex((LOOPBACK, port)) == 0

    process = ServerProcess.start(
        "pgbouncer", [program, str(folder / "pgbouncer.ini")], folder=folder,
        environment={"HOME": str(folder)}, user=user, last_signal=signal.SIGTERM, grace_seconds=_STOP_SECONDS,
    )  # fmt: skip
    try:
        wait_until_ready(answers, process, _START_SECONDS)
        yield parts._replace(netloc=f"{parts.username}@{LOOPBACK}:{port}").geturl()
    finally:
        process.stop(signal.SIGTERM, _STOP_SECONDS)
        shutil.rmtree(folder)
