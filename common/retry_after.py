"""Reads `Retry-After` of webhook receivers and of http actions."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from turnstile.common.domain.durations import SECONDS_MAX


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Return the wait that a `Retry-After` header requests, in seconds or by a date; None where invalid.

    RFC 9110, section 10.2.3.
    """
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return min(float(value[:20]), SECONDS_MAX)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    due_at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(0.0, (due_at - now).total_seconds()), SECONDS_MAX)
