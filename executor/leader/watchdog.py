"""What time means for attempts that neither end nor answer; `sessions` has the leases of workers.

In: the state and the time. Out: cancels, and `Overdue` inputs. It only heals: nothing on the normal path
waits for it (P7, P8).
"""

from collections.abc import Iterator
from typing import Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import CancelAttempt
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.queue_manager.inputs import Input, Overdue
from turnstile.executor.queue_manager.state import Execution, State

TICK_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 15.0
"""How long a worker has to stop an attempt by itself after its timeout, and again after a cancel."""


class Watchdog:
    """Looks at what is at workers, once per tick, by the leader's own clock: those of workers may step."""

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._ticked_at = 0.0
        self._running_since: dict[Grant, float] = {}
        """When this leader first saw an attempt that was reported as started."""
        self._asked_at: dict[Grant, float] = {}
        """Since when an attempt has been asked to stop."""

    def is_due(self, now: float) -> bool:
        """Return whether the next tick has come."""
        return now - self._ticked_at >= TICK_SECONDS

    def inputs(self, state: State, sessions: Sessions, now: float) -> Iterator[Input]:
        """Have attempts stopped that should have ended, and end those that were not stopped."""
        if not self.is_due(now):
            return
        self._ticked_at = now
        running, asked = self._running_since, self._asked_at
        self._running_since, self._asked_at = {}, {}
        for worker in list(state.workers.values()):
            for execution in worker.held.values():
                grant = execution.grant
                if grant is None:
                    continue
                if execution.started_at is not None:
                    self._running_since[grant] = running.get(grant, now)
                if not self._must_end(execution, grant, now):
                    continue
                since = self._asked_at[grant] = asked.get(grant, now)
                if since == now:
                    sessions.send(worker.id, _cancel(execution, grant))
                elif now - since > self._grace_seconds:
                    yield Overdue(execution_id=execution.id, grant=grant)

    def _must_end(self, execution: Execution, grant: Grant, now: float) -> bool:
        if execution.cancel_reason is not None:
            return True
        timeout = execution.timeout_seconds
        if timeout is None:
            timeout = execution.queue.action.definition.timeout_seconds
        since = self._running_since.get(grant)
        return timeout is not None and since is not None and now > since + timeout + self._grace_seconds


def _cancel(execution: Execution, grant: Grant) -> CancelAttempt:
    """Return what asks a worker to stop. A cancel is repeated: it may have been lost with the last leader."""
    if execution.cancel_reason is not None:
        return CancelAttempt(execution_id=execution.id, grant=grant, reason=execution.cancel_reason)
    reason = "ran longer than its timeout, and its worker had not stopped it"
    return CancelAttempt(execution_id=execution.id, grant=grant, reason=reason, status=Status.TIMEOUT)
