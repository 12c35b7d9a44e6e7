"""Instants as strangers write them: with a zone, and such that every clock here can hold them.

PostgreSQL's driver turns the ends of Python's calendar into infinities, which nothing can read again, and
other languages send those ends where they mean "none".
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)


def check_instant(instant: datetime) -> datetime:
    """Return an aware `instant` if it is one of the years 1970 to 8999; raises ValueError otherwise."""
    try:
        utc = instant.astimezone(UTC)
    except OverflowError:
        utc = datetime.min.replace(tzinfo=UTC)
    if not _EARLIEST <= utc < _LATEST:
        raise ValueError(
            "expected an instant from 1970 to 8999, like 2026-11-21T12:00:00Z; leave it out if none is meant"
        )
    return instant


Instant = Annotated[AwareDatetime, AfterValidator(check_instant)]
