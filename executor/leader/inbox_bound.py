"""From which id on the commands of the inbox are read.

Rows of decided commands stay for as long as an old snapshot is open, so a poll begins behind them. The
bound passes an id when every transaction that could still commit it has ended: no command is left behind,
however long its transaction takes. A transaction that has drawn no id does not hold it back.
"""

from typing import Final

_LIST_SECONDS: Final = 0.1
"""Shortest time between two lists of transactions: each takes locks of the server."""


class InboxBound:
    """The bound of one leadership. A new one begins at the first row."""

    def __init__(self) -> None:
        self.from_id = 0
        self._candidate: tuple[int, frozenset[str]] | None = None
        self._listed_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether a poll is to list who may still commit ids, which can raise the bound."""
        if now - self._listed_at < _LIST_SECONDS:
            return False
        self._listed_at = now
        return True

    def read(self, newest_id: int, entering: frozenset[str], first_id: int | None) -> None:
        """Note a poll: the newest id that was drawn, who entered until then, the first row found."""
        if self._candidate is not None:
            candidate_id, before = self._candidate
            if entering & before:
                return
            # All that had drawn an id up to this one have ended: what they committed was found or decided.
            end = candidate_id + 1
            self.from_id = max(self.from_id, end if first_id is None else min(first_id, end))
        self._candidate = newest_id, entering

    def reset(self) -> None:
        """Begin at the first row again: a session drew an id and could not say so."""
        self.from_id, self._candidate = 0, None
