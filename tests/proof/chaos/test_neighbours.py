"""P9: a quarter of a minute of a steady load beside every kind of neighbour."""

from typing import Final

import pytest

from tests.proof.chaos.neighbours.run import run_neighbours
from tests.proof.chaos.neighbours.schedule import Kind, Shape, plan_disturbances
from tests.proof.chaos.report import shown

SEED: Final = 16
SHORT: Final = Shape(seconds=16.0, lasting_seconds=(1.7, 2.2), quiet_seconds=(0.0, 0.3))
PATIENCE: Final = 4.0


def test_the_short_run_has_every_kind_of_neighbour() -> None:
    assert {each.kind for each in plan_disturbances(SEED, SHORT)} == set(Kind)


@pytest.mark.alone
@pytest.mark.timeout(300)
async def test_no_neighbour_delays_stops_or_loses_what_others_have_submitted() -> None:
    outcome = await run_neighbours(SEED, SHORT, patience=PATIENCE)
    print(shown(outcome))
    assert outcome.violations == []
