"""How a running execution is being stopped: since when, why, and when it is killed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

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
        return min(self._asked(), default=None)

    def stopping(self, enforced_seconds: float) -> Stopping | None:
        """Return how it is being stopped.

        After `enforced_seconds` the executor ends it without its worker.
        """
        since = self.asked_at()
        if since is None:
            return None
        grace_seconds = self.stop_grace_seconds
        seconds = enforced_seconds if grace_seconds is None else min(grace_seconds, enforced_seconds)
        return Stopping(
            reason="cancel" if since == self.cancel_requested_at else "timeout",
            since=since,
            kill_at=since + timedelta(seconds=seconds),
            cancel_reason=self.cancel_reason,
        )

    def _asked(self) -> Sequence[datetime]:
        if self.started_at is None or self.completed_at is not None:
            return ()
        asked = [] if self.cancel_requested_at is None else [self.cancel_requested_at]
        if self.timeout_seconds is not None:
            timed_out_at = self.started_at + timedelta(seconds=self.timeout_seconds)
            if timed_out_at <= self.read_at:
                asked.append(timed_out_at)
        return asked
