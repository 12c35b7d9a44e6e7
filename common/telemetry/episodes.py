"""Logs a failure that repeats: at its start, once a minute with a count while it lasts, and at its end.

In: what fails, and what works again. Out: log lines, few however often it fails.
"""

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_REPORT_SECONDS: Final = 60.0
_KEPT_MAX: Final = 1000
"""Failures remembered at once; of more the one that was logged longest ago is forgotten."""


@dataclass(slots=True)
class _Episode:
    logged_at: float
    count: int = 0
    """Failures since the last line."""


class Episodes:
    """The failures of one kind, by what failed; `event` names them in the log."""

    def __init__(self, logger: logging.Logger, event: str) -> None:
        self._logger = logger
        self._event = event
        self._over = f"{event}_over"
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()

    def failed(self, what: str, **fields: object) -> None:
        """Note that `what` failed once."""
        now = time.monotonic()
        episode = self._episodes.get(what)
        if episode is None:
            self._episodes[what] = _Episode(logged_at=now)
            if len(self._episodes) > _KEPT_MAX:
                self._episodes.popitem(last=False)
            self._logger.warning(self._event, extra={**fields, "count": 1})
            return
        episode.count += 1
        if now - episode.logged_at >= _REPORT_SECONDS:
            self._logger.warning(self._event, extra={**fields, "count": episode.count})
            self._episodes.move_to_end(what)
            episode.logged_at, episode.count = now, 0

    def works(self, what: str, **fields: object) -> None:
        """Note that `what` works; logged where it had failed."""
        episode = self._episodes.pop(what, None)
        if episode is not None:
            self._logger.info(self._over, extra={**fields, "count": episode.count})
