"""Looks names up: one that hangs holds up neither other names nor the end of the process.

In: a host. Out: its addresses. The system's resolver cannot be interrupted, so each look-up under way has a
thread, at most one for a host, and what a host's last look-up did says from which share of the threads it is
served. Addresses written as such need none.
"""

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from turnstile.executor.webhooks.places import PROMPT_SECONDS, Standing

_THREADS: Final = {Standing.NEW: 512, Standing.PROMPT: 64, Standing.SILENT: 32}
"""Most at once; there are so many only while names hang."""
_REMEMBERED_MAX: Final = 10_000

_Found: TypeAlias = list[str] | OSError | UnicodeError


class LookUps:
    """Resolves names for one executor, within a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = {standing: asyncio.Semaphore(count) for standing, count in _THREADS.items()}
        self._under_way: dict[str, asyncio.Future[_Found]] = {}
        self._standings: dict[str, Standing] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """Return the addresses of a host, each once; raises OSError or UnicodeError where it has none."""
        with suppress(OSError, UnicodeError):
            return _distinct(host, numeric=True)
        found = self._under_way.get(host)
        if found is None:
            standing = self._standings.get(host, Standing.NEW)
            await self._threads[standing].acquire()
            found = self._under_way.get(host)
            if found is None:
                found = self._start(host, standing)
            else:
                self._threads[standing].release()
        # Whoever gives up waiting leaves the look-up to the others that wait for it.
        match await asyncio.shield(found):
            case list() as addresses:
                return addresses
            case error:
                raise error

    def _start(self, host: str, standing: Standing) -> "asyncio.Future[_Found]":
        future: asyncio.Future[_Found] = self._loop.create_future()
        self._under_way[host] = future
        hangs = self._loop.call_later(PROMPT_SECONDS, self._note, host, Standing.SILENT)

        def ended(found: _Found) -> None:
            if not hangs.cancelled() and hangs.when() > self._loop.time():
                self._note(host, Standing.PROMPT)
            hangs.cancel()
            del self._under_way[host]
            self._threads[standing].release()
            if not future.done():
                future.set_result(found)

        def look_up() -> None:
            found = _look_up(host)
            # The loop may be closed by now: nobody waits for it any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(ended, found)

        # A daemon: the process can end without it.
        threading.Thread(target=look_up, name=f"look-up of {host[:60]}", daemon=True).start()
        return future

    def _note(self, host: str, standing: Standing) -> None:
        self._standings.pop(host, None)
        self._standings[host] = standing
        if len(self._standings) > _REMEMBERED_MAX:
            del self._standings[next(iter(self._standings))]


def _look_up(host: str) -> _Found:
    try:
        return _distinct(host)
    except (OSError, UnicodeError) as error:
        return error
    except Exception as error:  # noqa: BLE001  (whatever it is, somebody waits for it)
        return OSError(f"{type(error).__name__}: {error}")


def _distinct(host: str, *, numeric: bool = False) -> list[str]:
    flags = socket.AI_NUMERICHOST if numeric else 0
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    # A scoped address, like fe80::1%eth0, is link-local: its scope plays no part.
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
