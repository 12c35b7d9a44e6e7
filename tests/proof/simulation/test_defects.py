"""Planted bugs of leader and workers are caught; `make simulate ARGS=--defects` plants all."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.proof.planted import changed
from tests.proof.simulation.defect import Defect
from tests.proof.simulation.defects import DEFECTS, caught
from tests.proof.simulation.directed import KINDS, directed_story
from tests.proof.simulation.interference import world_of
from tests.proof.simulation.judge import violations

QUICK = (
    "a turn that was committed is sent again",
    "a load lets something start before it has counted the units that are held",
    "a lost worker is told after its attempts are given away",
    "a leaving does not wait for the reports before it",
    "a message without the secret of its worker counts",
    "a worker starts while its lease is in doubt",
    "a worker starts one more of a run than may run at once",
    "a run that stalls is not recalled",
    "a worker starts what is behind one that it returns",
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_bug_fits_the_code(defect: Defect) -> None:
    spec = importlib.util.find_spec(defect.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert changed(source, *defect.changes) != source
    assert set(defect.kinds) <= KINDS.keys()
    re.compile(defect.symptom)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_directed_story_passes_without_a_planted_bug(kind: str) -> None:
    for seed in range(2):
        assert violations(world_of(directed_story(kind, seed)).run()) == [], seed


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    (number,) = (n for n, each in enumerate(DEFECTS) if each.name == name)
    assert caught(number, seconds=20.0)
