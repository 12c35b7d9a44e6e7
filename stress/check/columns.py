"""Arithmetic on columns of the tables: rows by key, running extremes within groups, rows that break a rule.

Groups are in ascending order and rows in the order of events, so one pass over a column serves all groups.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.recording import NONE, Instants, Table


def column(table: Table, name: str) -> Instants:
    """Return a contiguous copy of one column, which is faster to scan repeatedly."""
    return np.ascontiguousarray(table[name], dtype=np.int64)


def attempt_keys(table: Table) -> Instants:
    """Return a unique number for each pair of execution and attempt."""
    return column(table, "execution_id") * (1 << 16) + column(table, "attempt")


def rows_of(keys: Instants, wanted: Instants) -> Instants:
    """Return for each wanted key the first row with it; NONE where there is none."""
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    order = None if bool(np.all(keys[1:] >= keys[:-1])) else np.argsort(keys, kind="stable")
    in_order = keys if order is None else keys[order]
    positions = np.minimum(np.searchsorted(in_order, wanted), len(keys) - 1)
    rows = positions if order is None else order[positions]
    return np.where(in_order[positions] == wanted, rows, NONE)


def values_at(values: Instants, rows: Instants, missing: int) -> Instants:
    """Return the value at each row, and `missing` where the row is NONE."""
    if not len(values):
        return np.full(len(rows), missing, np.int64)
    return np.where(rows == NONE, missing, values[rows])


def highest_before(
    groups: Instants,
    values: Instants,
    *,
    counts: NDArray[np.bool_] | None = None,
    positions: Instants | None = None,
) -> Instants:
    """Return the highest value among the earlier rows of the same group; NONE where there is none.

    `counts` selects the earlier rows to include (None: all); `positions` limits them to that many rows from
    the front (None: all earlier ones). Values are not negative.
    """
    if not len(values):
        return np.empty(0, np.int64)
    # Every key of a later group is above all keys of an earlier one: one pass serves all groups.
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    assert (int(groups.max()) + 1) * span < 2**63, "the product of groups and values exceeds 63 bits"
    keys = groups * span + (values - lowest)
    if counts is not None:
        keys = np.where(counts, keys, NONE)
    highest = np.concatenate([[NONE], np.maximum.accumulate(keys)])
    before = highest[:-1] if positions is None else highest[positions]
    return np.where((before != NONE) & (before // span == groups), before % span + lowest, NONE)


def rows_before(groups: Instants, instants: Instants, margin_ns: int) -> Instants:
    """Return for each row how many rows are in earlier groups, or earlier than it by more than the margin.

    Rows are in the order of groups and instants.
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


class Violation(NamedTuple):
    """What breaks a rule, and the execution that it concerns, if there is one."""

    what: str
    execution_id: int | None = None


def violations(
    broken: NDArray[np.bool_], sentence: Callable[[int], str], execution_ids: Instants | None = None
) -> list[Violation]:
    """Return the rows selected by the mask as violations; the execution ids are those of all rows."""
    return [
        Violation(sentence(row), None if execution_ids is None else int(execution_ids[row]))
        for row in np.flatnonzero(broken).tolist()
    ]


@dataclass(frozen=True, slots=True)
class Ruling:
    """Everything that breaks one rule, by the way in which it does."""

    rule: Rule
    checked: int
    kinds: tuple[Sequence[Violation], ...]

    def each(self) -> Iterator[Violation]:
        """Yield each violation."""
        return chain.from_iterable(self.kinds)

    def finding(self) -> Finding:
        """Return the summary; its examples take turns between the kinds of violations."""
        examples = [one[nth].what for nth in range(EXAMPLES_MAX) for one in self.kinds if nth < len(one)]
        return Finding(
            rule=self.rule,
            checked=self.checked,
            broken=sum(map(len, self.kinds)),
            examples=tuple(examples[:EXAMPLES_MAX]),
        )


def ruling(rule: Rule, checked: int, *kinds: Sequence[Violation]) -> Ruling:
    """Return everything that breaks a rule."""
    return Ruling(rule, checked, kinds)
