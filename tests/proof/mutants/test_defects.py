"""The list of planted defects fits the tree, and the trial tells a caught one from one that survives."""

from pathlib import Path

import pytest

from tests.proof.mutants.defect import Defect
from tests.proof.mutants.defects import DEFECTS
from tests.proof.mutants.trial import ROOT, Fate, attempt, servers


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_defect_can_be_planted_and_names_tests_that_exist(defect: Defect) -> None:
    assert defect.stands_in((ROOT / defect.file).read_text(encoding="utf-8"))
    assert defect.before != defect.after
    assert defect.caught_by
    for test in defect.caught_by:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_no_two_defects_share_a_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_catches_what_a_test_notices_and_reports_what_none_does(tmp_path: Path) -> None:
    file, test = "common/domain/states.py", "tests/unit/domain/test_states.py"
    before = '_move("claim", {Status.SCHEDULED}, Status.RUNNING)'
    caught = Defect(
        name="an end can be left",
        file=file,
        before=before,
        after='_move("claim", {Status.SCHEDULED, Status.COMPLETED}, Status.RUNNING)',
        caught_by=(test,),
    )
    unnoticed = Defect(
        name="nothing",
        file=file,
        before=before,
        after=before.replace(", Status", ",  Status"),
        caught_by=(test,),
    )
    broken = Defect(name="no code", file=file, before=before, after="(", caught_by=(test,))
    fates = [attempt(defect, {}).fate for defect in (caught, unnoticed, broken)]
    assert fates == [Fate.CAUGHT, Fate.SURVIVED, Fate.BROKEN]


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_leaves_the_tree_alone_and_uses_the_servers_it_is_given() -> None:
    (defect,) = (d for d in DEFECTS if d.name == "a slot is released before its attempt has ended")
    before = (ROOT / defect.file).read_text(encoding="utf-8")
    with servers() as environment:
        assert attempt(defect, environment).fate is Fate.CAUGHT
    assert (ROOT / defect.file).read_text(encoding="utf-8") == before
