"""P6 outside the database: one claim, one run, and none that goes on when its attempt is over.

A run whose attempt was taken away may go on until its worker hears of it, or has to know (`fence` in the
worker): that is the documented window, and it has a bound.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from tests.proof.history.lives import AttemptKey, Story, stories_of
from tests.proof.history.recording import Physical, Recording
from tests.proof.history.tolerances import Tolerances, Violation

_CLOCK_SLACK: Final = timedelta(milliseconds=50)
"""Two clocks of one machine, one of which is being set right."""


def claims_run_once(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Each run was claimed before it began, and none of its attempt was before it."""
    stories = stories_of(recording.moves)
    begun: set[AttemptKey] = set()
    for run in recording.runs:
        key = run.execution_id, run.attempt
        claims = stories[key].claims if key in stories else []
        started_at = recording.instant(run.started_ns)
        if key in begun:
            yield _broken(f"attempt {run.attempt} ran twice", run, started_at)
        elif not claims:
            yield _broken(f"attempt {run.attempt} ran, and nobody had claimed it", run, started_at)
        elif claims[0].stamp.at > started_at + _CLOCK_SLACK:
            yield _broken(f"attempt {run.attempt} ran before it was claimed", run, started_at)
        begun.add(key)


def runs_end_with_their_attempts(recording: Recording, tolerances: Tolerances) -> Iterator[Violation]:
    """What a worker reports as ended has stopped; what was taken from it stops within the bound."""
    stories = stories_of(recording.moves)
    for run in recording.runs:
        story = stories.get((run.execution_id, run.attempt))
        if story is None or story.over is None:
            continue
        over_at = story.over.stamp.at
        last_seen_at = recording.instant(max(run.started_ns, run.stopped_ns or 0))
        seconds = tolerances.seconds_outside(over_at, last_seen_at)
        if last_seen_at > over_at + _CLOCK_SLACK and not _is_window(story, seconds, tolerances):
            late_seconds = (last_seen_at - over_at).total_seconds()
            what = f"attempt {run.attempt} still ran {late_seconds:.3f} s after its end"
            yield _broken(what, run, over_at)


def _is_window(story: Story, seconds: float, tolerances: Tolerances) -> bool:
    return story.ended_from_outside and seconds <= tolerances.overlap_seconds


def _broken(what: str, run: Physical, at: datetime) -> Violation:
    return Violation(promise="P6", what=what, execution_id=run.execution_id, at=at)
