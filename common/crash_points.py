"""Named moments at which a test may kill the process, to prove that nothing is lost there (P5).

In: `TURNSTILE_CRASH_AT=<point>:<n>` in the environment. Out: SIGKILL when this process reaches the point for
the n-th time, as a power cut would. Without the variable `reached` looks at one name and returns.
"""

import os
import signal
from enum import StrEnum
from typing import Final

VARIABLE: Final = "TURNSTILE_CRASH_AT"


class CrashPoint(StrEnum):
    """Every moment at which something is done and the next thing is not."""

    REQUESTS_RECEIVED = "executor.requests.received"
    """Requests are read; nothing is decided."""
    REQUESTS_ADMITTED = "executor.requests.admitted"
    """Their admission is committed; their cancels are not decided, nothing is told."""
    REQUESTS_DECIDED = "executor.requests.decided"
    """All is committed; nothing is told."""
    REQUESTS_TOLD = "executor.requests.told"
    """All that follows is confirmed; the requests are not acknowledged."""
    COMPLETIONS_RECEIVED = "executor.completions.received"
    COMPLETIONS_SETTLED = "executor.completions.settled"
    """The slots are free and granted on; nobody was told."""
    COMPLETIONS_TOLD = "executor.completions.told"
    EXECUTOR_ACKNOWLEDGED = "executor.acknowledged"
    """A batch of requests or completions is acknowledged."""
    SUBMISSION_ADMITTED = "executor.submission.admitted"
    """A request over HTTP is committed; neither offered nor answered."""
    CANCELLATION_DECIDED = "executor.cancellation.decided"
    """A cancel over HTTP is committed; neither its worker nor anybody else was told."""
    ACTIONS_PUT = "executor.actions.put"
    """Changed actions are committed, with the grants that follow; nobody was told."""
    DEAD_LETTERS_SENT = "executor.dead_letters.sent"
    """Dead letters are confirmed as the messages that they were; their rows are not deleted."""
    DEAD_LETTERS_STORED = "executor.dead_letters.stored"
    """Dead letters are committed as rows; the broker's queue still has them."""
    WEBHOOKS_CLAIMED = "executor.webhooks.claimed"
    """Webhooks are claimed; nothing was posted."""
    WEBHOOK_POSTED = "executor.webhook.posted"
    """A webhook was posted and answered; what became of it is not noted."""
    SWEPT = "executor.watchdog.swept"
    """A sweep that moved something is committed; nobody was told."""
    OFFER_RECEIVED = "worker.offer.received"
    ATTEMPT_CLAIMED = "worker.attempt.claimed"
    """The claim is committed; the attempt has not started."""
    ATTEMPT_RUN = "worker.attempt.run"
    """The action returned; its end is not reported."""
    ATTEMPT_FINISHED = "worker.attempt.finished"
    """The end is committed; nobody was told."""
    ATTEMPT_TOLD = "worker.attempt.told"
    """The executor was told; the offer is not acknowledged."""
    WORKER_ACKNOWLEDGED = "worker.acknowledged"
    ATTEMPT_HANDED_BACK = "worker.attempt.handed_back"
    """A draining worker gave an attempt back; nobody was told."""


class _Countdown:
    def __init__(self, order: str) -> None:
        point, _, times = order.partition(":")
        self.point = CrashPoint(point)
        self._left = int(times or 1)

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


_order = os.environ.get(VARIABLE)
_countdown: Final = _Countdown(_order) if _order else None


def reached(point: CrashPoint) -> None:
    """Die here if the environment says so."""
    if _countdown is not None and _countdown.point is point:
        _countdown.count()
