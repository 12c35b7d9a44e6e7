"""How a running execution is being stopped: since when, why, and when it is killed or ended. Pure."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from turnstile.executor.queries.schemas import Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known of a run that may have been asked to stop."""

    started_at: datetime | None
    completed_at: datetime | None = None
    timeout_seconds: float | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    stop_grace_seconds: float | None = None
    """Of its worker; None: unknown."""
    read_at: datetime

    def asked_at(self) -> datetime | None:
        """Return since when it has been asked to stop; None: it has not been, or does not run."""
        return min(self._asked().values(), default=None)

    def stopping(self, stop_timeout_seconds: float) -> Stopping | None:
        """Return how it is being stopped.

        The leader ends it without its worker `stop_timeout_seconds` after a cancel, or twice that time
        after a timeout.
        """
        asked = self._asked()
        if not asked:
            return None
        reason = min(asked, key=lambda each: asked[each])
        ended_after = {"cancel": stop_timeout_seconds, "timeout": 2 * stop_timeout_seconds}
        grace_seconds = math.inf if self.stop_grace_seconds is None else self.stop_grace_seconds
        return Stopping(
            reason=reason,
            since=asked[reason],
            kill_at=min(
                at + timedelta(seconds=min(grace_seconds, ended_after[why])) for why, at in asked.items()
            ),
            cancel_reason=self.cancel_reason,
        )

    def _asked(self) -> dict[Literal["cancel", "timeout"], datetime]:
        if self.started_at is None or self.completed_at is not None:
            return {}
        asked: dict[Literal["cancel", "timeout"], datetime] = {}
        if self.cancel_requested_at is not None:
            asked["cancel"] = self.cancel_requested_at
        if self.timeout_seconds is not None:
            timed_out_at = self.started_at + timedelta(seconds=self.timeout_seconds)
            if timed_out_at <= self.read_at:
                asked["timeout"] = timed_out_at
        return asked
