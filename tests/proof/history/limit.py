"""P1: never more slots than the limit, and never more running than slots.

Two witnesses that know nothing of each other: the log of the slots, and the actions' own lines. A limit
that is lowered takes nothing away: it only forbids to grant.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.proof.history.lines import changes_of, replayed
from tests.proof.history.lives import Story, stories_of
from tests.proof.history.recording import Physical, QueueMove, Recording
from tests.proof.history.tolerances import Tolerances, Violation


def grants_keep_the_limit(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """After each commit that granted, no more slots are held than the limit allows, and none in a pause."""
    for line in replayed(recording.moves):
        if not line.granted:
            continue
        if line.limit is not None and len(line.held) > line.limit:
            what = f"granted past the limit of {line.limit}: {sorted(line.held)} hold a slot"
        elif line.paused:
            what = f"granted to {[grant.execution_id for grant in line.granted]} in a pause"
        else:
            continue
        yield Violation(promise="P1", what=what, queue_id=line.queue_id, at=line.at)


def runs_keep_the_limit(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """At each physical start, no more run than the limit allowed since the oldest of them was granted."""
    limits = _limits(recording)
    for queue_id, runs in _counted(recording).items():
        running: list[tuple[datetime, datetime, int]] = []
        for run in runs:
            if run.until <= run.started_at:
                continue
            heapq.heappush(running, (run.until, run.granted_at, run.execution_id))
            while running[0][0] <= run.started_at:
                heapq.heappop(running)
            limit = limits[queue_id].most_between(min(granted for _, granted, _ in running), run.started_at)
            if limit is not None and len(running) > limit:
                ids = sorted(execution_id for *_, execution_id in running)
                what = f"{len(running)} ran at once, {ids}, under a limit of {limit}"
                yield Violation(promise="P1", what=what, queue_id=queue_id, at=run.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A run for as long as it counts: to its stop, or, where its worker lost it, to that moment."""

    execution_id: int
    granted_at: datetime
    started_at: datetime
    until: datetime


class _Limits:
    """The limits of one line over time."""

    def __init__(self, changes: Sequence[QueueMove]) -> None:
        self._ats = [change.stamp.at for change in changes]
        self._limits = [change.limit for change in changes]

    def most_between(self, first: datetime, last: datetime) -> int | None:
        """Return the highest limit in force at any moment from `first` to `last`; None: there was none."""
        known = self._limits[max(0, bisect_right(self._ats, first) - 1) : bisect_right(self._ats, last)]
        limits = [limit for limit in known if limit is not None]
        return max(limits) if len(limits) == len(known) and limits else None


def _limits(recording: Recording) -> Mapping[int, _Limits]:
    return {
        queue_id: _Limits([change for change in changes if isinstance(change, QueueMove)])
        for queue_id, changes in changes_of(recording.moves).items()
    }


def _counted(recording: Recording) -> Mapping[int, list[_Counted]]:
    """Return the runs of each queue in the order of their starts."""
    stories = stories_of(recording.moves)
    queues: dict[int, list[_Counted]] = defaultdict(list)
    for run in sorted(recording.runs, key=lambda r: r.started_ns):
        story = stories.get((run.execution_id, run.attempt))
        if story is not None and story.grants:
            grant = story.grants[0]
            queues[grant.queue_id].append(
                _Counted(
                    execution_id=run.execution_id,
                    granted_at=grant.stamp.at,
                    started_at=recording.instant(run.started_ns),
                    until=_until(recording, run, story),
                )
            )
    return queues


def _until(recording: Recording, run: Physical, story: Story) -> datetime:
    stopped_at = None if run.stopped_ns is None else recording.instant(run.stopped_ns)
    if stopped_at is not None and not story.ended_from_outside:
        return stopped_at
    over_at = None if story.over is None else story.over.stamp.at
    # Killed, or it raised: nobody saw it stop, but its attempt is over.
    return min(
        at for at in (stopped_at, over_at, datetime.max.replace(tzinfo=recording.booted_at.tzinfo)) if at
    )
