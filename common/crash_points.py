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

    LEADERSHIP_TAKEN = "executor.leader.leadership_taken"
    """The epoch is raised; nothing is loaded."""
    LEADERSHIP_LOADED = "executor.leader.loaded"
    """Everything is loaded; no turn has been decided."""
    TURN_TAKEN = "executor.leader.taken"
    """Messages and commands are taken; nothing is decided."""
    TURN_DECIDED = "executor.leader.decided"
    """The turn is decided in memory; nothing is written."""
    TURN_WRITTEN = "executor.leader.written"
    """The turn is committed; nothing is published."""
    TURN_PUBLISHED = "executor.leader.published"
    """Offers, answers and cancels are confirmed; no event is, and the inputs are not acknowledged."""
    TURN_ACKNOWLEDGED = "executor.leader.acknowledged"
    """The events are published or kept, and the inputs acknowledged."""
    COMMANDS_STORED = "executor.commands.stored"
    """Commands over HTTP are committed as rows; none is decided or answered."""
    REPORTS_WRITTEN = "executor.reports.written"
    """Logs and progress are committed; their messages are not acknowledged."""
    DEAD_LETTERS_PUBLISHED = "executor.dead_letters.published"
    """Replayed dead letters are confirmed; their rows are not deleted."""
    DEAD_LETTERS_STORED = "executor.dead_letters.stored"
    """Dead letters are committed as rows; they are not acknowledged."""
    WEBHOOKS_CLAIMED = "executor.webhooks.claimed"
    """Webhooks are claimed; nothing is posted."""
    WEBHOOK_POSTED = "executor.webhook.posted"
    """A webhook is posted and answered; its outcome is not stored."""
    OFFERS_RECEIVED = "worker.offers.received"
    """Offers are in memory; none has started."""
    ATTEMPT_STARTED = "worker.attempt.started"
    """An attempt is about to run; its start is not reported."""
    ATTEMPT_ENDED = "worker.attempt.ended"
    """An attempt has ended; its end is not published."""
    REPORTS_CONFIRMED = "worker.reports.confirmed"
    """The broker has confirmed reports; the leader has not said that they are committed."""
    COMMIT_HEARD = "worker.reports.committed"
    """The leader has committed reports; the worker has not forgotten them."""


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
