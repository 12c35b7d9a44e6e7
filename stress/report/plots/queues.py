"""The queues of a stage as pictures name and choose them, and the limit that each had at each moment.

In: a recording. Out: names, the busiest of them, and limits as steps. Pure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stress.names import action_ref
from stress.recording import Recording
from stress.stage import Load
from stress.tables import NEVER, SECOND


def name_of(queue: int, load: Load) -> str:
    """Return what people call a queue."""
    action, key = divmod(queue, max(load.keys, 1))
    return action_ref(action) if load.keys == 0 else f"{action_ref(action)} key {key}"


def busiest(recording: Recording, count: int) -> list[int]:
    """Return the queues with the most attempts, in ascending order."""
    queues = recording.attempts["queue"]
    total = np.bincount(queues[queues >= 0], minlength=1)
    most = np.argsort(-total, kind="stable")[:count]
    return sorted(int(queue) for queue in most if total[queue])


def limit_steps(recording: Recording, queue: int) -> list[tuple[float, int | None]]:
    """Return from which second on which limit was in force; a change counts from its answer."""
    action = queue // max(recording.stage.load.keys, 1)
    steps: list[tuple[float, int | None]] = [(0.0, recording.stage.limit)]
    if recording.stage.all_wait_first and recording.opened_at != NEVER:
        steps = [(0.0, 0), ((recording.opened_at - recording.began_at) / SECOND, recording.stage.limit)]
    changes = sorted((c for c in recording.limit_changes if c.action == action), key=lambda c: c.answered_at)
    return steps + [((change.answered_at - recording.began_at) / SECOND, change.limit) for change in changes]


def highest_limit(steps: Sequence[tuple[float, int | None]]) -> int | None:
    """Return the largest limit that was ever in force; None: there was none at all."""
    return max((limit for _, limit in steps if limit is not None), default=None)


def in_span(starts: NDArray[np.int64], ends: NDArray[np.int64], began: int, ended: int) -> NDArray[np.bool_]:
    """Tell which of these spans touch another."""
    return (starts < ended) & (ends > began)
