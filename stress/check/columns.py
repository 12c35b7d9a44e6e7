"""Columns of the tables, and which row of one table is meant by another.

In: tables. Out: contiguous columns of int64, and places of rows. Next: the rules, which reckon with them.
"""

import numpy as np

from turnstile.stress.recording import Recording
from turnstile.stress.tables import NONE, SECOND, Instants, Table


def column(table: Table, name: str) -> Instants:
    """Return one column by itself: what follows runs over it many times."""
    return np.ascontiguousarray(table[name], dtype=np.int64)


def attempt_keys(table: Table) -> Instants:
    """Return one number for each pair of execution and attempt."""
    return column(table, "execution_id") * (1 << 16) + column(table, "attempt")


def rows_of(keys: Instants, wanted: Instants) -> Instants:
    """Return for each wanted key the first row that bears it; NONE where none does."""
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    order = None if bool(np.all(keys[1:] >= keys[:-1])) else np.argsort(keys, kind="stable")
    in_order = keys if order is None else keys[order]
    places = np.minimum(np.searchsorted(in_order, wanted), len(keys) - 1)
    rows = places if order is None else order[places]
    return np.where(in_order[places] == wanted, rows, NONE)


def taken(values: Instants, rows: Instants, missing: int) -> Instants:
    """Return the value of each row, and `missing` where there is no row."""
    if not len(values):
        return np.full(len(rows), missing, np.int64)
    return np.where(rows == NONE, missing, values[rows])


def moment(recording: Recording, instant: int) -> str:
    """Return an instant as people read it: seconds from the beginning of the stage."""
    return f"{(int(instant) - recording.began_at) / SECOND:.3f} s"
