"""The limit of a queue at each moment, and what stood above it though it must not.

In: a recording, and how many there were in each bin of time. Out: spans of one limit each, and the excess.
Pure. `check` decides whether a limit held, grant by grant; this only shows where.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from turnstile.stress.recording import Recording
from turnstile.stress.report.plots.levels import Floats
from turnstile.stress.tables import NEVER, SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpan:
    """A time under one limit, in seconds from the beginning of the stage."""

    began: float
    ended: float
    limit: int | None
    lowered: bool = False
    """Before, more were allowed: those may end first, and nobody takes their places."""

    def excess(self, edges: Floats, most: Floats) -> Floats:
        """Return for each bin how many stood above the limit; none in the bin of a change."""
        over = np.zeros(len(most))
        if self.limit is None:
            return over
        inside = np.flatnonzero((edges[:-1] >= self.began) & (edges[1:] <= self.ended))
        allowed = np.full(len(inside), float(self.limit))
        if self.lowered and len(inside):
            left = np.minimum.accumulate(most[inside])
            allowed = np.maximum(allowed, np.concatenate((left[:1], left[:-1])))
        here = most[inside]
        over[inside] = np.where(here > allowed, here - self.limit, 0)
        return over


def limit_spans(recording: Recording, queue: int) -> list[LimitSpan]:
    """Return the limits of a queue in order; a change counts from its answer."""
    action = queue // max(recording.stage.load.keys, 1)
    given: list[tuple[float, int | None]] = [(0.0, recording.stage.limit)]
    if recording.stage.all_wait_first and recording.opened_at != NEVER:
        given = [(0.0, 0), (_second(recording, recording.opened_at), recording.stage.limit)]
    changes = sorted((c for c in recording.limit_changes if c.action == action), key=lambda c: c.answered_at)
    given += [(_second(recording, change.answered_at), change.limit) for change in changes]
    spans, before = [], given[0][1]
    for (began, limit), (ended, _) in pairwise([*given, (inf, None)]):
        lowered = limit is not None and (before is None or before > limit)
        spans.append(LimitSpan(began=began, ended=ended, limit=limit, lowered=lowered))
        before = limit
    return spans


def _second(recording: Recording, instant: int) -> float:
    return (instant - recording.began_at) / SECOND
