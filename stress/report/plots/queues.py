"""The queues of a stage as pictures name and choose them.

In: a recording. Out: names, and the busiest of them. Pure.
"""

import numpy as np

from turnstile.stress.names import action_ref
from turnstile.stress.recording import Recording
from turnstile.stress.stage import Load


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
