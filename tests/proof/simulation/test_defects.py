"""Planted bugs of leader and workers are caught; `make simulate ARGS=--defects` plants all."""

import re

import pytest

from tests.proof.planted import PlantedBug
from tests.proof.simulation.defects import DEFECTS, caught, shown_by
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


@pytest.mark.parametrize("bug", DEFECTS, ids=lambda bug: bug.name)
def test_a_planted_bug_names_kinds_of_stories_and_a_symptom(bug: PlantedBug) -> None:
    kinds, symptom = shown_by(bug)
    assert set(kinds) <= KINDS.keys()
    re.compile(symptom)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_directed_story_passes_without_a_planted_bug(kind: str) -> None:
    for seed in range(2):
        assert violations(world_of(directed_story(kind, seed)).run()) == [], seed


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    (number,) = (n for n, each in enumerate(DEFECTS) if each.name == name)
    assert caught(number, seconds=20.0)
