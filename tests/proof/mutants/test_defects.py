"""The planted defects fit the tree, and a trial tells a caught defect from one that survives."""

from pathlib import Path

import pytest

from tests.proof.mutants.defect import Defect
from tests.proof.mutants.defects import DEFECTS
from tests.proof.mutants.trial import ROOT, Fate, attempt, copied_tree
from tests.proof.planted import changed

_STATES, _STATES_TEST = "common/domain/states.py", "tests/unit/domain/test_states.py"
_START = '_transition("start", {Status.SCHEDULED}, Status.RUNNING)'
_WRONG = '_transition("start", {Status.QUEUED}, Status.RUNNING)'


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_defect_fits_the_tree_and_names_a_test_that_make_test_runs(defect: Defect) -> None:
    text = (ROOT / defect.file).read_text(encoding="utf-8")
    assert changed(text, defect.change) != text
    path, _, name = defect.caught_by.partition("[")[0].partition("::")
    before, found, _ = (ROOT / path).read_text(encoding="utf-8").partition(f"def {name}(")
    assert found, defect.caught_by
    assert "mark.whole" not in before.rpartition("\n\n\n")[2], defect.caught_by


def test_no_two_defects_share_a_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


def test_a_planted_defect_is_gone_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one = 1\n")
    defect = Defect(name="two", file="a.py", change="= 1 => = 2", caught_by="")
    with defect.planted(tmp_path):
        assert file.read_text() == "one = 2\n"
    assert file.read_text() == "one = 1\n"


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_tells_a_caught_defect_from_a_survivor_and_from_invalid_code() -> None:
    def defect(wrong: str) -> Defect:
        change = f"{_START} => {wrong}"
        return Defect(name="a defect", file=_STATES, change=change, caught_by=_STATES_TEST)

    with copied_tree() as tree:
        fates = [attempt(defect(wrong), tree, {}).fate for wrong in (_WRONG, f"{_START} ", "(")]
    assert fates == [Fate.CAUGHT, Fate.SURVIVED, Fate.BROKEN]
