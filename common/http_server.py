"""How either service answers HTTP: on a port bound before anything starts, with the signals left alone."""

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from turnstile.common.command_line import EXIT_USAGE, CommandFailed

_PATIENCE_SECONDS: Final = 30.0
_OF_THE_PORT: Final = (errno.EADDRINUSE, errno.EACCES)
_TICKS_PER_LOOK: Final = 10
"""uvicorn ticks ten times a second."""


class HttpServer(uvicorn.Server):
    """Leaves the signals to `common.lifecycle`, and closes connections on which nothing moves.

    Whoever connects and sends no request, or takes nothing of an answer, would else keep an open file, and
    its answer in memory, for ever. Between two requests uvicorn's own time limit holds.
    """

    def __init__(self, config: uvicorn.Config, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        super().__init__(config)
        self._patience_seconds = patience_seconds
        self._still: dict[Any, tuple[int, float]] = {}
        """Connections on which nothing moved at the last look: bytes not taken yet, and since when."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: HTTP is answered until the rest has drained."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections once a second."""
        if counter % _TICKS_PER_LOOK == 0:
            self._abort_still()
        return await super().on_tick(counter)

    def _abort_still(self) -> None:
        now = time.monotonic()
        waiting = {
            connection: connection.transport.get_write_buffer_size()
            for connection in list[Any](self.server_state.connections)
            if connection.cycle is None or connection.flow.write_paused
        }
        self._still = {
            connection: self._still[connection]
            if self._still.get(connection, (-1, 0.0))[0] == untaken_bytes
            else (untaken_bytes, now)
            for connection, untaken_bytes in waiting.items()
        }
        for connection, (_, since) in self._still.items():
            if now - since >= self._patience_seconds:
                connection.transport.abort()


def listen(host: str, port: int, *, settings: str) -> socket.socket:
    """Bind now: an address that cannot be had is a wrong setting, and the error names it.

    `settings` is what the names of both begin with, like `TURNSTILE_HTTP` of `TURNSTILE_HTTP_PORT`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno in _OF_THE_PORT:
            raise CommandFailed(
                f"{settings}_PORT: cannot listen on {host}:{port}: {error.strerror}; "
                "choose another port, or 0 for any free one",
                exit_code=EXIT_USAGE,
            ) from None
        raise _wrong_host(settings, host, error.strerror) from None
    except UnicodeError:
        raise _wrong_host(settings, host, "no name of a host") from None


def _wrong_host(settings: str, host: str, reason: str | None) -> CommandFailed:
    return CommandFailed(
        f"{settings}_HOST: cannot listen on {host}: {reason}; expected an address of this machine, like "
        "127.0.0.1, or 0.0.0.0 for all of them",
        exit_code=EXIT_USAGE,
    )
