"""Named points at which a test may kill or stop the process, to prove that nothing is lost there (P5).

In: `TURNSTILE_CRASH_AT=<point>:<n>` in the environment. Out: SIGKILL when this process reaches the point for
the n-th time, as a power cut would. With `<point>:<n>:stop` it is SIGSTOP: a process that hangs there until
SIGCONT. A point that several steps share is limited to one of them by `<point>/<step>:<n>`. Without the
variable `reached` checks one name and returns.
"""

import os
import signal
from enum import StrEnum
from typing import Final

VARIABLE: Final = "TURNSTILE_CRASH_AT"


class CrashPoint(StrEnum):
    """Every point between two steps of which only the first is done."""

    REQUESTS_RECEIVED = "executor.requests.received"
    """Requests are read; nothing is committed."""
    REQUESTS_ADMITTED = "executor.requests.admitted"
    """Their admission is committed; their cancels are not, and nothing is published."""
    REQUESTS_DECIDED = "executor.requests.decided"
    """Everything is committed; nothing is published."""
    REQUESTS_PUBLISHED = "executor.requests.published"
    """All messages are confirmed; the requests are not acknowledged."""
    COMPLETIONS_RECEIVED = "executor.completions.received"
    COMPLETIONS_SETTLED = "executor.completions.settled"
    """The slots are freed and granted again; nothing is published."""
    COMPLETIONS_PUBLISHED = "executor.completions.published"
    EXECUTOR_ACKNOWLEDGED = "executor.acknowledged"
    """A batch of requests or completions is acknowledged."""
    SUBMISSION_ADMITTED = "executor.submission.admitted"
    """A request over HTTP is committed; neither offered nor answered."""
    SUBMISSIONS_ADMITTED = "executor.submissions.admitted"
    """Submissions of database sessions are admitted and deleted; nothing is published, nothing is refused."""
    CANCELLATION_DECIDED = "executor.cancellation.decided"
    """A cancel over HTTP is committed; nothing is published."""
    ACTIONS_PUT = "executor.actions.put"
    """Changed actions are committed, with the grants that follow; nothing is published."""
    ACTIONS_STORED = "executor.actions.stored"
    """Changed actions are committed, with new routes; what waits at gates has not moved."""
    KEY_PUT = "executor.key.put"
    """The settings of a concurrency key are committed, with the grants that follow; nothing is published."""
    RESOURCE_STORED = "executor.resource.stored"
    """A changed resource is committed; what waits at it has not moved."""
    RESOURCE_PUT = "executor.resource.put"
    """What waits at a changed resource has moved, and grants are committed; nothing is published."""
    POOL_STORED = "executor.pool.stored"
    """Changed settings of a pool are committed; what waits for its workers has not started."""
    POOL_PUT = "executor.pool.put"
    """What a changed pool lets start is granted and committed; nothing is published."""
    POOLS_REFRESHED = "executor.pools.refreshed"
    """The capacity of the pools is counted and committed; what it allows is not granted."""
    MORE_GRANTED = "executor.more.granted"
    """What one statement left over is granted and committed; nothing is published."""
    RATE_DUE = "executor.rate.due"
    """The next start of a rate is due; nothing is granted."""
    RATE_GRANTED = "executor.rate.granted"
    """What waited for a rate is granted and committed; nothing is published."""
    DEAD_LETTERS_PUBLISHED = "executor.dead_letters.published"
    """Replayed dead letters are confirmed; their rows are not deleted."""
    DEAD_LETTERS_STORED = "executor.dead_letters.stored"
    """Dead letters are committed as rows; they are not acknowledged."""
    WEBHOOKS_CLAIMED = "executor.webhooks.claimed"
    """Webhooks are claimed; nothing is posted."""
    WEBHOOK_POSTED = "executor.webhook.posted"
    """A webhook is posted and answered; its outcome is not stored."""
    SWEPT = "executor.watchdog.swept"
    """A sweep that changed rows is committed; nothing is published. The step is the name of the sweep."""
    ROUND_COMPLETED = "executor.watchdog.round_completed"
    """All sweeps of a round are committed; the other executors have not heard of it."""
    OFFER_RECEIVED = "worker.offer.received"
    ATTEMPT_CLAIMED = "worker.attempt.claimed"
    """The claim is committed; the attempt has not started."""
    PROGRESS_WRITTEN = "worker.progress.written"
    """The progress of running attempts is committed; the attempts go on."""
    LOG_WRITTEN = "worker.log.written"
    """A part of the log of a running attempt is committed; the attempt goes on."""
    ATTEMPT_RUN = "worker.attempt.run"
    """The action returned; its outcome is not stored."""
    ATTEMPT_FINISHED = "worker.attempt.finished"
    """The outcome is committed; nothing is published, and the offer is not acknowledged."""
    WORKER_ACKNOWLEDGED = "worker.acknowledged"
    """Offers of ended attempts are acknowledged; their completions may not be published."""
    ATTEMPT_PUBLISHED = "worker.attempt.published"
    """Completions are confirmed; their offers may not be acknowledged."""
    ATTEMPT_HANDED_BACK = "worker.attempt.handed_back"
    """A draining worker returned an attempt; nothing is published."""


class _Countdown:
    def __init__(self, order: str) -> None:
        name, _, rest = order.partition(":")
        times, _, how = rest.partition(":")
        point, _, self._step = name.partition("/")
        self.point = CrashPoint(point)
        self._left = int(times or 1)
        self._signal = {"": signal.SIGKILL, "stop": signal.SIGSTOP}[how]

    def count(self, step: str) -> None:
        if self._step not in ("", step):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signal)


_order = os.environ.get(VARIABLE)
_countdown: Final = _Countdown(_order) if _order else None


def reached(point: CrashPoint, step: str = "") -> None:
    """Kill or stop this process here if the environment selects this point, and this step or all."""
    if _countdown is not None and _countdown.point is point:
        _countdown.count(step)
