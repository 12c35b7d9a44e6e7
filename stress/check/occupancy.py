"""How many at once: slots held, runs running.

In: spans of queues. Out: for each span how many there are at its first instant. Next: `limit` judges it.
"""

import numpy as np

from turnstile.stress.tables import Instants


def at_each_start(queues: Instants, starts: Instants, ends: Instants) -> Instants:
    """Return for each span how many of its queue there are when it starts, itself included.

    A span holds its first instant and not its last: what ends then has made room. One that ends before it
    has begun counts for itself alone.
    """
    count = len(starts)
    lasting = (ends > starts).astype(np.int32)
    is_start = np.repeat(np.array([1, 0], np.int8), count)
    order = np.lexsort((is_start, np.concatenate([starts, ends]), np.concatenate([queues, queues])))
    # Each span adds one and takes one away again, so every queue begins with none.
    now = np.cumsum(np.concatenate([lasting, -lasting])[order])
    found = np.empty(count, np.int64)
    of_start = order < count
    found[order[of_start]] = now[of_start]
    return found + (1 - lasting)
