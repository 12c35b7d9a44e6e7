"""What commands that follow something share: short outages of the API are waited out, what follows goes on.

In: a question. Out: its answer, at the latest after half a minute without one: then `ApiUnreachable`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from executor.cli.connection import Api, ApiUnreachable, Json

T = TypeVar("T")

_OUTAGE_MAX_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5


def patiently(ask: Callable[[], T]) -> T:
    """Ask until there is an answer, for half a minute."""
    give_up_at = time.monotonic() + _OUTAGE_MAX_SECONDS
    while True:
        try:
            return ask()
        except ApiUnreachable:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(_PAUSE_SECONDS)


class LogReading:
    """How far the logs of one execution were read."""

    def __init__(self, api: Api, execution_id: int, *, attempt: int | None = None) -> None:
        self._api = api
        self._path = f"/executions/{execution_id}/logs"
        self._attempt = attempt
        self._cursor: str | None = None
        self.ended = False

    def fresh(self) -> Iterator[Json]:
        """Yield the pieces that were written since the last call."""
        while not self.ended:
            page = patiently(self._page)
            self.ended, self._cursor = page["ended"], page["next_cursor"]
            yield from page["items"]
            if not page["items"]:
                return

    def _page(self) -> Json:
        return self._api.get(self._path, {"attempt": self._attempt, "after": self._cursor})
