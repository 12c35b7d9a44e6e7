"""What `executor history` prints."""

from typing import Any

import pytest

from turnstile.executor.cli.client import Json
from turnstile.executor.cli.history import _print_actions, _print_points, bars

_COUNTS = ("admitted", "started", "completed", "failed", "timeout", "cancelled", "expired", "abandoned")


def counts(**fields: Any) -> dict[str, Any]:
    times = {f"{name}_p{percent}_seconds": None for name in ("waiting", "running") for percent in (50, 95)}
    return {**dict.fromkeys(_COUNTS, 0), **times, "slots_used": 0.0, **fields}


def found(*actions: dict[str, Any]) -> Json:
    busy = counts(
        admitted=9, started=8, completed=3, failed=1, timeout=1, abandoned=1, cancelled=1, expired=1,
        waiting_p50_seconds=0.0123, waiting_p95_seconds=2.34, running_p50_seconds=59.94,
        running_p95_seconds=3661.2, slots_used=1.25,
    )  # fmt: skip
    points = [{**counts(), "at": "2026-11-21T07:30:00Z"}, {**busy, "at": "2026-11-21T07:31:00Z"}]
    window = {"from": "2026-11-21T07:30:00Z", "until": "2026-11-21T07:32:00Z"}
    return Json({**window, "points": points, "totals": busy, "actions": actions or None})


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


_BUSY = ["9", "8", "8", "3", "12ms", "2.3s", "59.9s", "1h1m1s", "1.2"]


def test_actions_are_rows_with_all_of_them_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    _print_actions(found({**counts(admitted=1), "action_ref": "reports.render"}))
    head, action, total, _, chart = lines(capsys)
    assert head[:5] == ["ACTION", "ADMITTED", "STARTED", "ENDED", "FAILED"]
    assert action == ["reports.render", "1", "0", "0", "0", "-", "-", "-", "-", "0.0"]
    assert total == ["(all)", *_BUSY]
    assert " ".join(chart) == "ended | █| 2026-11-21 07:30:00Z to 2026-11-21 07:32:00Z"


def test_points_in_which_nothing_happened_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    _print_points(found())
    head, point, *_ = lines(capsys)
    assert (head[0], point) == ("SINCE", ["2026-11-21", "07:31:00Z", *_BUSY])


@pytest.mark.parametrize(
    ("values", "picture"), [((), ""), ((0, 0), "  "), ((1, 1000, 500), "▁█▄"), ((1, 1), "██")]
)
def test_bars_show_the_largest_value_as_full_and_any_other_one_that_is_not_zero(
    values: tuple[int, ...], picture: str
) -> None:
    assert bars(values) == picture
