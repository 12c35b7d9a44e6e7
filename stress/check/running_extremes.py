"""The highest value before each row, the lowest after it, within groups: who was overtaken, and by whom.

In: groups in ascending order, values in the order in which things happened. Out: for each row the value of
another one. Next: `order`.
"""

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.tables import NONE, Instants


def highest_before(
    groups: Instants,
    values: Instants,
    *,
    counts: NDArray[np.bool_] | None = None,
    places: Instants | None = None,
) -> Instants:
    """Return the highest value among the earlier rows of the same group; NONE: there is none.

    `counts` says which rows are looked back at, None: all; `places` how many from the front, None: all those
    before. Values are not negative.
    """
    if not len(values):
        return np.empty(0, np.int64)
    keys, lowest, span = _keys(groups, values)
    if counts is not None:
        keys = np.where(counts, keys, NONE)
    highest = np.concatenate([[NONE], np.maximum.accumulate(keys)])
    before = highest[:-1] if places is None else highest[places]
    return _decoded(before, groups, lowest, span)


def lowest_after(groups: Instants, values: Instants) -> Instants:
    """Return the lowest value among the later rows of the same group; NONE: there is none."""
    if not len(values):
        return np.empty(0, np.int64)
    keys, lowest, span = _keys(groups, values)
    least = np.minimum.accumulate(keys[::-1])[::-1]
    after = np.concatenate([least[1:], [NONE]])
    return _decoded(after, groups, lowest, span)


def places_before(groups: Instants, instants: Instants, margin_ns: int) -> Instants:
    """Return for each row how many rows from the front lie in groups before its own, or earlier than it.

    By more than the margin. Rows are in the order of groups and instants.
    """
    count = len(groups)
    is_row = np.repeat(np.array([1, 0], np.int8), count)
    probed = np.concatenate([instants, instants - margin_ns])
    order = np.lexsort((is_row, probed, np.concatenate([groups, groups])))
    rows_so_far = np.cumsum(is_row[order], dtype=np.int64)
    found = np.empty(count, np.int64)
    of_probe = order >= count
    found[order[of_probe] - count] = rows_so_far[of_probe]
    return found


def _keys(groups: Instants, values: Instants) -> tuple[Instants, int, int]:
    # Any key of a later group is above all keys of an earlier one, so one pass serves all groups.
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    assert (int(groups.max()) + 1) * span < 2**63, "more groups times values than one number can tell apart"
    return groups * span + (values - lowest), lowest, span


def _decoded(keys: Instants, groups: Instants, lowest: int, span: int) -> Instants:
    return np.where((keys != NONE) & (keys // span == groups), keys % span + lowest, NONE)
