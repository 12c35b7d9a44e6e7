"""Every planted bug fits the code: it changes one place."""

import pytest

from tests.proof.planted import ROOT, PlantedBug, changed, planted_bugs

PROOFS = ("queue_manager", "simulation", "mutants")


@pytest.mark.parametrize(
    "bug", [*planted_bugs("simulation"), *planted_bugs("mutants")], ids=lambda bug: bug.name
)
def test_a_planted_bug_fits_the_code(bug: PlantedBug) -> None:
    (path,) = {change.where for change in bug.changes}
    text = (ROOT / path).read_text(encoding="utf-8")
    assert changed(text, bug.changes) != text


def test_no_two_planted_bugs_share_a_name() -> None:
    names = [bug.name for proof in PROOFS for bug in planted_bugs(proof)]
    assert len(set(names)) == len(names)
