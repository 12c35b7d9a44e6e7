"""Arithmetic on columns of the tables: rows by key, running extremes within groups, rows that break a rule.

Groups are in ascending order and rows in the order of events, so one pass over a column serves all groups.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    keys, lowest, span = _keys(groups, values)
    if counts is not None:
        keys = np.where(counts, keys, NONE)
    highest = np.concatenate([[NONE], np.maximum.accumulate(keys)])
    before = highest[:-1] if positions is None else highest[positions]
    return _decoded(before, groups, lowest, span)


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


def _keys(groups: Instants, values: Instants) -> tuple[Instants, int, int]:
    # Every key of a later group is above all keys of an earlier one: one pass serves all groups.
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    assert (int(groups.max()) + 1) * span < 2**63, "the product of groups and values exceeds 63 bits"
    return groups * span + (values - lowest), lowest, span


def _decoded(keys: Instants, groups: Instants, lowest: int, span: int) -> Instants:
    return np.where((keys != NONE) & (keys // span == groups), keys % span + lowest, NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violations:
    """Rows that break a rule in one way; `sentence` describes one row."""

    rows: Instants
    sentence: Callable[[int], str]
    execution_ids: Instants | None = None
    """Of all rows."""


def violations(
    broken: NDArray[np.bool_], sentence: Callable[[int], str], execution_ids: Instants | None = None
) -> Violations:
    """Return the rows selected by the mask as violations."""
    rows = np.flatnonzero(broken).astype(np.int64)
    return Violations(rows=rows, sentence=sentence, execution_ids=execution_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Everything that breaks one rule."""

    rule: Rule
    checked: int
    kinds: tuple[Violations, ...]

    def each(self) -> Iterator[tuple[str, int | None]]:
        """Yield a sentence and the execution of each violation."""
        for one in self.kinds:
            for row in one.rows.tolist():
                yield (
                    one.sentence(row),
                    None if one.execution_ids is None else int(one.execution_ids[row]),
                )

    def finding(self) -> Finding:
        """Return the summary; its examples take turns between the kinds of violations."""
        examples = [
            one.sentence(int(one.rows[nth]))
            for nth in range(EXAMPLES_MAX)
            for one in self.kinds
            if nth < len(one.rows)
        ]
        return Finding(
            rule=self.rule,
            checked=self.checked,
            broken=sum(len(one.rows) for one in self.kinds),
            examples=tuple(examples[:EXAMPLES_MAX]),
        )


def ruling(rule: Rule, checked: int, *kinds: Violations) -> Ruling:
    """Return everything that breaks a rule."""
    return Ruling(rule=rule, checked=checked, kinds=kinds)
