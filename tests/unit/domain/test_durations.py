"""Durations as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.common.domain.durations import SECONDS_MAX, format_duration, format_elapsed, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), ("1h30m", 5400.0), ("2d", 172_800.0), ("1.5h", 5400.0),
        (" 1H 30M ", 5400.0), ("90", 90.0), ("0.5", 0.5), ("0s", 0.0), (45, 45.0), (0.25, 0.25),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_of_seconds_or_numbers_with_units(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "5 minutes", "5x", "m5", "1h-30m", "-5s", "1e3", "nan", "inf", "1h30", ".5s", True]
)
def test_invalid_text_is_refused_with_an_example(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"expected for example '250ms', '30s', '1h30m' or 2\.5"):
        parse_duration(text)


@pytest.mark.parametrize(
    "seconds", [-1, -0.001, math.nan, math.inf, SECONDS_MAX + 1, 1e300, "9" * 400, "4000d"]
)
def test_a_duration_is_between_zero_and_ten_years(seconds: str | float) -> None:
    with pytest.raises(ValueError, match="duration out of range"):
        parse_duration(seconds)


@given(st.integers(min_value=0, max_value=int(SECONDS_MAX * 1000)))
def test_formatted_durations_parse_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, abs=1e-4
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (0.05, "0.1s"), (9.94, "9.9s"), (59.94, "59.9s"), (59.96, "1m"), (93.4, "1m33s")],
)
def test_a_measured_time_is_as_precise_as_it_is_long(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text


@given(st.text("0123456789.ehmsd -\u0663", max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert 0 <= parse_duration(text) <= SECONDS_MAX
    except ValueError:
        pass
