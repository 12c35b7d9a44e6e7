"""How either service answers HTTP: on a port bound before anything starts, with the signals left alone."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from common.command_line import EXIT_USAGE, CommandFailed


class HttpServer(uvicorn.Server):
    """Leaves the signals to `common.lifecycle`: HTTP is answered until the rest has drained."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(host: str, port: int, *, setting: str) -> socket.socket:
    """Bind now: a port that is taken is a wrong setting, and the error names it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CommandFailed(
            f"{setting}: cannot listen on {host}:{port}: {error.strerror}; "
            "choose another port, or 0 for any free one",
            exit_code=EXIT_USAGE,
        ) from None
