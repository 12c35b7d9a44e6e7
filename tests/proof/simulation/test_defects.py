"""Planted bugs of leader and workers are caught; `make simulate ARGS=--defects` plants all."""

import importlib.util
from pathlib import Path

import pytest

from tests.proof.simulation.defects import DEFECTS, Defect, is_caught

QUICK = (
    "a turn with an unknown outcome is sent again without a new epoch",
    "an end that no worker saw is not stored for listeners",
    "what lives for long gets no row of its own",
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_bug_fits_the_code(defect: Defect) -> None:
    spec = importlib.util.find_spec(defect.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(defect.old) == 1


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    (number,) = (n for n, each in enumerate(DEFECTS) if each.name == name)
    assert is_caught(number, range(1, 20), 100.0)
