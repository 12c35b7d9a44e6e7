"""What the HTTP servers of both services share.

`listen` binds the port before anything else starts, `HttpServer` leaves the signals to `lifecycle`, closes
stalled connections and summarises what uvicorn logs for each request.
"""

import errno
import logging
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from turnstile.common.cli import CommandFailed
from turnstile.common.exit_codes import ExitCode
from turnstile.common.telemetry.logs import Episodes

logger = logging.getLogger(__name__)

_REASON_CHARS_MAX: Final = 500
_CALLS_MAX: Final = 30
_STALL_SECONDS: Final = 30.0
_PORT_ERRORS: Final = (errno.EADDRINUSE, errno.EACCES)
_TICKS_PER_CHECK: Final = 10
"""uvicorn ticks ten times a second."""


class HttpServer(uvicorn.Server):
    """Leaves the signals to `common.lifecycle`, and closes stalled connections.

    A client that connects and sends no request, or does not read its response, would otherwise keep an open
    file, and the response in memory. Between two requests uvicorn's own time limit applies. What uvicorn logs
    for each faulty request becomes few lines.
    """

    def __init__(self, config: uvicorn.Config, *, stall_seconds: float = _STALL_SECONDS) -> None:
        super().__init__(config)
        filters = logging.getLogger("uvicorn.error").filters
        filters[:] = [*(each for each in filters if not isinstance(each, _Summary)), _Summary()]
        self._stall_seconds = stall_seconds
        self._stalled: dict[Any, tuple[int, float]] = {}
        """Connections without progress at the last check: unsent bytes, and since when."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: HTTP requests are answered until the service has drained."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Check the connections once a second."""
        if counter % _TICKS_PER_CHECK == 0:
            self._abort_stalled()
        return await super().on_tick(counter)

    def _abort_stalled(self) -> None:
        now = time.monotonic()
        waiting = {
            connection: connection.transport.get_write_buffer_size()
            for connection in list[Any](self.server_state.connections)
            if connection.cycle is None or connection.flow.write_paused
        }
        self._stalled = {
            connection: self._stalled[connection]
            if self._stalled.get(connection, (-1, 0.0))[0] == unsent_bytes
            else (unsent_bytes, now)
            for connection, unsent_bytes in waiting.items()
        }
        for connection, (_, since) in self._stalled.items():
            if now - since >= self._stall_seconds:
                connection.transport.abort()


class _Summary(logging.Filter):
    """Replaces the records of uvicorn, one or more for each faulty request, by episodes.

    An unexpected error that was answered with 500 also gets here: Starlette raises it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._failed = Episodes(logger, "http_request_failed", level=logging.ERROR)
        self._warned = Episodes(logger, "http_server_warning")

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass on what is no warning and no error."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            path = _path_of(error)
            self._failed.broke(
                f"{type(error).__name__} {path}",
                error,
                error_type=type(error).__name__,
                reason=str(error)[:_REASON_CHARS_MAX],
                location=path[-1] if path else "unknown",
            )
        elif record.levelno >= logging.WARNING:
            # By its text before the values are filled in.
            self._warned.failed(str(record.msg), reason=record.getMessage()[:_REASON_CHARS_MAX])
        else:
            return True
        return False


def _path_of(error: BaseException) -> list[str]:
    """Return the calls of our own code that led to an error, from the route inwards; else all calls.

    The same error at the same place of a library may come from many routes.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [each for each in frames if str(each[0].f_globals.get("__name__")).startswith("turnstile.")]
    return [
        f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"
        for frame, line in (own or frames)[-_CALLS_MAX:]
    ]


def listen(host: str, port: int, *, settings: str) -> socket.socket:
    """Bind the address; raises CommandFailed, which names the setting, where that is impossible.

    `settings` is the common prefix of both settings, like `TURNSTILE_HTTP` of `TURNSTILE_HTTP_PORT`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno in _PORT_ERRORS:
            raise CommandFailed(
                f"{settings}_PORT: cannot listen on {host}:{port}: {error.strerror}; "
                "choose another port, or 0 for any free one",
                exit_code=ExitCode.USAGE,
            ) from None
        raise _wrong_host(settings, host, error.strerror) from None
    except UnicodeError:
        raise _wrong_host(settings, host, "not a host name") from None


def _wrong_host(settings: str, host: str, reason: str | None) -> CommandFailed:
    return CommandFailed(
        f"{settings}_HOST: cannot listen on {host}: {reason}; expected an address of this machine, like "
        "127.0.0.1, or 0.0.0.0 for all of them",
        exit_code=ExitCode.USAGE,
    )
