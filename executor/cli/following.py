"""What commands that follow something share: once the API has answered, its short outages are waited out.

In: a question. Out: its answer, or `ApiUnreachable`: at once where there never was one, else after half a
minute without any.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from turnstile.executor.cli.connection import Api, ApiUnreachable, Json

T = TypeVar("T")

_OUTAGE_MAX_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5


class Patience:
    """Asks again while the API is out."""

    def __init__(self) -> None:
        self._was_there = False

    def ask(self, question: Callable[[], T]) -> T:
        """Ask until there is an answer, for half a minute."""
        give_up_at = time.monotonic() + _OUTAGE_MAX_SECONDS
        while True:
            try:
                answer = question()
            except ApiUnreachable:
                if not self._was_there or time.monotonic() >= give_up_at:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                self._was_there = True
                return answer


class LogReading:
    """How far the logs of one execution were read."""

    def __init__(self, api: Api, execution_id: int, *, attempt: int | None = None) -> None:
        self._api = api
        self._path = f"/executions/{execution_id}/logs"
        self._attempt = attempt
        self._cursor: str | None = None
        self._patience = Patience()
        self.ended = False

    def fresh(self) -> Iterator[Json]:
        """Yield the pieces that were written since the last call."""
        while not self.ended:
            page = self._patience.ask(self._page)
            self.ended, self._cursor = page["ended"], page["next_cursor"]
            yield from page["items"]
            if not page["items"]:
                return

    def _page(self) -> Json:
        return self._api.get(self._path, {"attempt": self._attempt, "cursor": self._cursor})
