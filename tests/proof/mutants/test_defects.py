"""The planted defects fit the tree, and a trial tells a caught defect from one that survives."""

import pytest

from tests.proof.mutants.defect import Defect
from tests.proof.mutants.trial import DEFECTS, ROOT, Fate, attempt, servers

_STATES, _STATES_TEST = "common/domain/states.py", "tests/unit/domain/test_states.py"
_CLAIM = '_transition("claim", {Status.SCHEDULED}, Status.RUNNING)'


def _defect(*, before: str = _CLAIM, after: str) -> Defect:
    return Defect(name="a defect", file=_STATES, before=before, after=after, caught_by=(_STATES_TEST,))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_defect_fits_the_tree_and_names_tests_that_make_test_runs(defect: Defect) -> None:
    assert defect.fits((ROOT / defect.file).read_text(encoding="utf-8"))
    assert defect.before != defect.after
    assert defect.caught_by
    for test in defect.caught_by:
        path, _, name = test.partition("[")[0].partition("::")
        assert (ROOT / path).exists(), test
        if name:
            before, found, _ = (ROOT / path).read_text(encoding="utf-8").partition(f"def {name}(")
            assert found, test
            assert "mark.whole" not in before.rpartition("\n\n\n")[2], test


def test_no_two_defects_share_a_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("if (\n    a\n    and call(b, c)\n):\n", True),
        ("if (a and  call(\n    b,  # the first\n    c,\n)):", True),
        ("if (a and call(b, c)): if (a and call(b, c)):", False),
        ("if (a and call(b, c2)):", False),
        ("elif (a and call(b, c)):", False),
    ],
)
def test_a_defect_fits_a_reformatted_file_and_nothing_else(text: str, fits: bool) -> None:
    assert _defect(before="if (a and call(b, c)):\n", after="").fits(text) is fits


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_tells_a_caught_defect_from_a_survivor_and_from_invalid_code() -> None:
    caught = _defect(after='_transition("claim", {Status.SCHEDULED, Status.COMPLETED}, Status.RUNNING)')
    survivor = _defect(after=_CLAIM.replace(", Status", ",  Status"))
    invalid = _defect(after="(")
    fates = [attempt(defect, {}).fate for defect in (caught, survivor, invalid)]
    assert fates == [Fate.CAUGHT, Fate.SURVIVED, Fate.BROKEN]


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_trial_leaves_the_tree_unchanged_and_uses_the_given_servers() -> None:
    (defect,) = (d for d in DEFECTS if d.name == "a slot is released before its attempt has ended")
    before = (ROOT / defect.file).read_text(encoding="utf-8")
    with servers() as environment:
        assert attempt(defect, environment).fate is Fate.CAUGHT
    assert (ROOT / defect.file).read_text(encoding="utf-8") == before
