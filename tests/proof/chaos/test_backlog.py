"""The shortest time for a backlog is what its scarcest thing needs: worker slots, a limit, or a rate."""

import pytest

from tests.proof.chaos.backlog import Left, shortest_seconds


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        ([], 0.0),
        ([Left("chaos.free", None, 24, 48.0)], 4.0),
        ([Left("chaos.one", None, 5, 6.0), Left("chaos.two", None, 5, 6.0)], 6.0),
        ([Left("chaos.keyed", "1", 5, 6.0), Left("chaos.keyed", "2", 5, 7.0)], 7.0),
        ([Left("chaos.mail", None, 60, 0.0)], 10.0),
        ([Left("chaos.light", None, 60, 0.0), Left("chaos.shared", "1", 60, 0.0)], 10.0),
    ],
)
def test_a_backlog_takes_as_long_as_its_scarcest_thing(left: list[Left], seconds: float) -> None:
    assert shortest_seconds(left, worker_slots=12) == pytest.approx(seconds)
