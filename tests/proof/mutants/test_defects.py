"""A planted bug names a test that `make test` runs, and a trial tells a caught bug from one that survives."""

from pathlib import Path

import pytest

from tests.proof.mutants.trial import Fate, attempt, copied_tree, planted
from tests.proof.planted import ROOT, Change, PlantedBug, planted_bugs

_STATES, _STATES_TEST = "common/domain/states.py", "tests/unit/domain/test_states.py"
_START = '_transition("start", {Status.SCHEDULED}, Status.RUNNING)'
_WRONG = '_transition("start", {Status.QUEUED}, Status.RUNNING)'


@pytest.mark.parametrize("bug", planted_bugs("mutants"), ids=lambda bug: bug.name)
def test_a_planted_bug_names_a_test_that_make_test_runs(bug: PlantedBug) -> None:
    path, _, name = bug.found_by.partition("[")[0].partition("::")
    before, found, _ = (ROOT / path).read_text(encoding="utf-8").partition(f"def {name}(")
    assert found, bug.found_by
    assert "mark.whole" not in before.rpartition("\n\n\n")[2], bug.found_by


def test_a_planted_bug_is_gone_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one = 1\n")
    with planted(PlantedBug(name="two", found_by="", changes=(Change("a.py", "= 1", "= 2"),)), tmp_path):
        assert file.read_text() == "one = 2\n"
    assert file.read_text() == "one = 1\n"


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_tells_a_caught_bug_from_a_survivor_and_from_invalid_code() -> None:
    def bug(wrong: str) -> PlantedBug:
        return PlantedBug(name="a bug", found_by=_STATES_TEST, changes=(Change(_STATES, _START, wrong),))

    with copied_tree() as tree:
        fates = [attempt(bug(wrong), tree, {}).fate for wrong in (_WRONG, f"{_START} ", "(")]
    assert fates == [Fate.CAUGHT, Fate.SURVIVED, Fate.BROKEN]
