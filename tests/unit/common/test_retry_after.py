"""`Retry-After` as receivers and actions of other systems send it."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from turnstile.common.domain.durations import SECONDS_MAX
from turnstile.common.retry_after import retry_after_seconds

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        ("9" * 400, SECONDS_MAX),
        (format_datetime(NOW + timedelta(hours=1), usegmt=True), 3600),
        (format_datetime((NOW + timedelta(hours=1)).replace(tzinfo=None)), 3600),
        ("Fri, 31 Dec 9999 23:59:59 GMT", SECONDS_MAX),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        *(
            (invalid, None)
            for invalid in (None, "", "soon", "-1", "1e3", "१२", "Thu, 99 Jan 1970 00:00:00 GMT")
        ),
    ],
)
def test_retry_after_is_seconds_or_a_date_up_to_the_longest_duration(
    value: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(value, NOW) == seconds
