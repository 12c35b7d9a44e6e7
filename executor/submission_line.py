"""From which ticket on submissions of database sessions are left (P5, P15).

In: what each poll of the line read. Out: where the next poll begins. Rows of decided submissions stay for as
long as an old snapshot is open, so each poll begins behind them. The bound rises past a ticket when every
transaction that drew it or an earlier one has ended and its rows were read: no submission is left behind it,
however long its transaction takes to commit.
"""

from time import monotonic
from typing import Final

from turnstile.executor.protocol import SubmissionPage

_RAISE_SECONDS: Final = 0.1
"""Shortest time between two polls that list the open transactions: the list takes locks of the server."""
_SWEEP_SECONDS: Final = 60.0
"""Time between two polls from the first ticket, whatever the bound is (P7)."""


class SubmissionLine:
    """The bound of the submissions that one session of an executor reads."""

    def __init__(self) -> None:
        self._from_ticket = 0
        self._candidate: tuple[int, frozenset[str]] | None = None
        self._listed_at = self._swept_at = float("-inf")
        self._oldest: tuple[int, float] | None = None

    def begin(self) -> tuple[int, bool]:
        """Return where a poll begins, and whether it is to list the open transactions."""
        now = monotonic()
        with_entering = now - self._listed_at >= _RAISE_SECONDS
        if with_entering:
            self._listed_at = now
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            return 0, with_entering
        return self._from_ticket, with_entering

    def read(self, page: SubmissionPage) -> None:
        """Take the first page of a poll; raise the bound if the page lists the open transactions."""
        self._note_oldest(page.oldest_ticket)
        if page.entering is None:
            return
        if self._candidate is not None:
            newest_ticket, entering = self._candidate
            if entering & page.entering:
                return
            # All of them have ended: what they committed is on this page or behind it, or was decided.
            left = newest_ticket + 1 if page.oldest_ticket is None else page.oldest_ticket
            self._from_ticket = max(self._from_ticket, min(left, newest_ticket + 1))
        self._candidate = (page.newest_ticket, page.entering)

    def left_seconds(self) -> float:
        """Return for how long the oldest submission was read and not decided."""
        return 0.0 if self._oldest is None else monotonic() - self._oldest[1]

    def _note_oldest(self, ticket: int | None) -> None:
        if ticket is None:
            self._oldest = None
        elif self._oldest is None or self._oldest[0] != ticket:
            self._oldest = ticket, monotonic()
