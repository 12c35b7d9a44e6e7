"""A recording that was kept is the recording that was made."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.stress.histories import MILLISECOND, NewLimit, Plan, lawful
from turnstile.stress.recording import Recording


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    plan = Plan(killed_at=200 * MILLISECOND, new_limits=(NewLimit(0, None, 300 * MILLISECOND),))
    made = replace(lawful(plan), collapses=("worker-0 ended with 1",), clock_error_ns=7)
    made.save(tmp_path / "kept" / "stage")
    kept = Recording.load(tmp_path / "kept" / "stage")
    for field in fields(Recording):
        one, other = getattr(made, field.name), getattr(kept, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)
        else:
            assert one == other, field.name


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"recording\.json"):
        Recording.load(tmp_path)
