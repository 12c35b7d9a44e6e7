"""The queue manager keeps its guarantees in every interleaving and in random walks; planted bugs are
detected."""

import time
from collections.abc import Callable

import pytest

from tests.proof.planted import PlantedBug
from tests.proof.queue_manager.configurations import CONFIGURATIONS, Configuration
from tests.proof.queue_manager.defects import DEFECTS, detection, is_quick, planted
from tests.proof.queue_manager.explorer import explore
from tests.proof.queue_manager.walks import walk
from tests.support.sizes import sizes, within


@pytest.mark.parametrize(
    ("configuration", "alive_max"),
    [pytest.param(make, small, id=make.__name__) for make, small, _ in CONFIGURATIONS],
)
def test_no_interleaving_breaks_a_guarantee(
    configuration: Callable[[int], Configuration], alive_max: int
) -> None:
    report = explore(configuration(alive_max), states_max=100)
    print(report)
    assert report.violation is None, "\n".join(map(str, [report.violation, *report.trace]))


@pytest.mark.timeout(300)
@sizes("seconds", short=2.0, whole=60.0)
def test_no_walk_breaks_a_guarantee(seconds: float) -> None:
    assert sum(map(walk, within(seconds))) > 0


@pytest.mark.parametrize("bug", DEFECTS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_code(bug: PlantedBug) -> None:
    with planted(bug):
        pass


@pytest.mark.parametrize("bug", [each for each in DEFECTS if is_quick(each)], ids=lambda bug: bug.name)
def test_a_planted_bug_is_detected(bug: PlantedBug) -> None:
    assert detection(bug) is not None


@pytest.mark.whole
@pytest.mark.parametrize("bug", [each for each in DEFECTS if not is_quick(each)], ids=lambda bug: bug.name)
def test_a_planted_bug_is_detected_by_exploration(bug: PlantedBug) -> None:
    began = time.monotonic()
    assert detection(bug) is not None
    print(f"{time.monotonic() - began:.1f} s")
