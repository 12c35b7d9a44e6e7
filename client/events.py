"""Follows the status of one execution: by the stream of events of the API, and by reading it.

In: an execution id. Out: a `StatusEvent` for each status and progress that was seen, the terminal one last.
The stream carries at most one batch a second, so a status that lasts less may be left out. A stream that
ends or cannot be opened is opened again, and the execution is read at growing intervals, whatever event was
lost.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from turnstile.client.api import Api
from turnstile.client.errors import Rejected, Unavailable
from turnstile.client.schemas import Progress
from turnstile.common.domain.states import Status, is_terminal

_PAUSE_SECONDS: Final = 1.0
_PAUSE_MAX_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEvent:
    """The status or the progress of an execution has changed, or is the first one seen."""

    execution_id: int
    status: Status
    attempt: int
    """Number of the latest grant; 0 before the first."""
    progress: Progress | None = None
    """The last that its attempt has reported, at most about once a second."""


class StatusEvents:
    """The events of one execution; `close` ends the stream."""

    def __init__(self, api: Api, execution_id: int) -> None:
        self._api = api
        self._execution_id = execution_id
        self._seen: StatusEvent | None = None
        self._events: asyncio.Queue[StatusEvent | None] = asyncio.Queue()
        self._following: asyncio.Task[None] | None = None

    async def next(self) -> StatusEvent | None:
        """Return the next event; None after the terminal one.

        Raises Rejected for an unknown execution, and Unavailable if the first read fails; later it repeats.
        """
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name=f"events-{self._execution_id}")
        event = await self._events.get()
        if event is None:
            self._events.put_nowait(None)
            await self._following
        return event

    async def close(self) -> None:
        """End the stream."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})

    async def _follow(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            found = await self._api.execution(self._execution_id)
            if not self._note(found.status, found.attempt, found.progress):
                tasks = [asyncio.create_task(self._stream()), asyncio.create_task(self._read_again())]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._events.put_nowait(None)

    async def _stream(self) -> None:
        """Follow streams until the execution has ended."""
        while True:
            # The read fails if the execution does not exist or the token is invalid.
            with suppress(Rejected, Unavailable):
                async with self._api.events(self._execution_id) as lines:
                    if await self._follow_stream(lines):
                        return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _read_again(self) -> None:
        """Read the execution until it has ended: a change just before the first poll is in no event."""
        pause_seconds = _PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause_seconds)
            if await self._read():
                return
            pause_seconds = min(2 * pause_seconds, _PAUSE_MAX_SECONDS)

    async def _read(self) -> bool:
        """Read the execution; return whether it has ended."""
        try:
            found = await self._api.execution(self._execution_id)
        except Unavailable:
            return False
        return self._note(found.status, found.attempt, found.progress)

    async def _follow_stream(self, lines: AsyncIterator[str]) -> bool:
        """Return whether the execution has ended; False at the end of the stream."""
        name = ""
        async for line in lines:
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name == "executions":
                items: list[dict[str, Any]] = from_json(value)["items"]
                changes = [each for each in items if each["id"] == self._execution_id]
                if any(self._note_change(each) for each in changes):
                    return True
        return False

    def _note_change(self, change: dict[str, Any]) -> bool:
        # An executor of an earlier version sends no progress.
        progress = change.get("progress")
        return self._note(
            Status(change["status"]),
            change["attempt"],
            None if progress is None else Progress.model_validate(progress),
        )

    def _note(self, status: Status, attempt: int, progress: Progress | None) -> bool:
        event = StatusEvent(
            execution_id=self._execution_id, status=status, attempt=attempt, progress=progress
        )
        if event != self._seen:
            self._seen = event
            self._events.put_nowait(event)
        return is_terminal(status)
