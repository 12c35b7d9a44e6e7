"""`Retry-After`, as anybody may answer it."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from turnstile.common.domain.durations import SECONDS_MAX
from turnstile.common.retry_after import retry_after_seconds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_seconds_are_taken_as_they_are_and_never_beyond_what_a_duration_may_be() -> None:
    assert retry_after_seconds("0", NOW) == 0
    assert retry_after_seconds("120", NOW) == 120
    assert retry_after_seconds("9" * 400, NOW) == SECONDS_MAX


def test_a_date_is_waited_for() -> None:
    in_an_hour = NOW + timedelta(hours=1)
    assert retry_after_seconds(format_datetime(in_an_hour, usegmt=True), NOW) == 3600
    assert retry_after_seconds(format_datetime(in_an_hour.replace(tzinfo=None)), NOW) == 3600
    assert retry_after_seconds("Fri, 31 Dec 9999 23:59:59 GMT", NOW) == SECONDS_MAX


def test_a_date_that_is_past_is_at_once() -> None:
    assert retry_after_seconds("Thu, 01 Jan 1970 00:00:00 GMT", NOW) == 0


@pytest.mark.parametrize("value", [None, "", "soon", "-1", "1e3", "१२", "Thu, 99 Jan 1970 00:00:00 GMT"])
def test_anything_else_asks_nothing(value: str | None) -> None:
    assert retry_after_seconds(value, NOW) is None
