"""Waits for executions to end, by looking: at the first few that have not, at growing intervals.

In: ids in the order of their submission. Out: each execution once, as it ended. A short outage of the API
is waited out; what was submitted goes on anyway.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from turnstile.common.command_line import EXIT_TIMED_OUT, CommandFailed
from turnstile.common.domain.states import TERMINAL
from turnstile.executor.cli.connection import Api, ApiUnreachable, Json

_WATCHED_MAX: Final = 20
"""How many are looked at in one round: lines move in order, so the first to end are among the first."""
_INTERVAL_MIN_SECONDS: Final = 0.05
_INTERVAL_MAX_SECONDS: Final = 2.0
_INTERVAL_FACTOR: Final = 1.5
_OUTAGE_MAX_SECONDS: Final = 30.0


def wait_for(
    api: Api, execution_ids: Iterable[int], *, timeout_seconds: float, on_end: Callable[[Json], None]
) -> None:
    """Call `on_end` with each execution when it has ended; raises CommandFailed when that takes too long."""
    deadline = time.monotonic() + timeout_seconds
    unwatched, watched = deque(execution_ids), list[int]()
    interval_seconds = _INTERVAL_MIN_SECONDS
    while unwatched or watched:
        while unwatched and len(watched) < _WATCHED_MAX:
            watched.append(unwatched.popleft())
        ended = [execution for execution in _look(api, watched, deadline) if execution["status"] in TERMINAL]
        for execution in ended:
            watched.remove(execution["id"])
            on_end(execution)
        if ended:
            interval_seconds = _INTERVAL_MIN_SECONDS
            continue
        _sleep(interval_seconds, deadline, first_id=watched[0], left=len(watched) + len(unwatched))
        interval_seconds = min(interval_seconds * _INTERVAL_FACTOR, _INTERVAL_MAX_SECONDS)


def _look(api: Api, execution_ids: list[int], deadline: float) -> list[Json]:
    give_up_at = min(time.monotonic() + _OUTAGE_MAX_SECONDS, deadline)
    while True:
        try:
            return [api.get(f"/executions/{execution_id}") for execution_id in execution_ids]
        except ApiUnreachable:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(_INTERVAL_MAX_SECONDS / 4)


def _sleep(seconds: float, deadline: float, *, first_id: int, left: int) -> None:
    until_deadline = deadline - time.monotonic()
    if until_deadline <= 0:
        raise CommandFailed(
            f"waited too long: {left} not ended, and none is stopped by that; look at the first with "
            f"'executor get {first_id}'",
            exit_code=EXIT_TIMED_OUT,
        )
    time.sleep(min(seconds, until_deadline))
