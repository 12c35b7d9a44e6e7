"""How late the event loop comes to what is due: the first sign of an overloaded or a blocked process."""

import asyncio
from collections import deque
from typing import Final, NoReturn

_LOOK_SECONDS: Final = 0.5
_LOOKS_KEPT: Final = 60
"""Half a minute: longer than the pause between two scrapes."""


class LoopLag:
    """Sleeps, and looks how much longer that took."""

    def __init__(self) -> None:
        self._late_seconds: deque[float] = deque(maxlen=_LOOKS_KEPT)

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + _LOOK_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)
            self._late_seconds.append(max(0.0, loop.time() - due_at))

    def worst_seconds(self) -> float | None:
        """Return the worst of the last half minute; None before the first look."""
        return max(self._late_seconds, default=None)
