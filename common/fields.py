"""Types of the fields that users write in actions, requests and settings, with their checks.

In: values from YAML, JSON, code or the environment. Out: checked values; pydantic turns each ValueError into
an error that names the field. Nothing is stored before these checks.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, StringConstraints, WithJsonSchema

from turnstile.common.domain.durations import SECONDS_MAX, format_duration, parse_duration

_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_SCHEDULE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_POOL: Final = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_POINTER: Final = re.compile(r"(?:/(?:[^~/]|~0|~1)*)+")
UNITS_MAX: Final = 1_000_000
"""Largest limit, in executions or units."""
WEIGHT_MAX: Final = 16
STARTS_MAX: Final = 100_000
PRIORITY_DEFAULT: Final = 3
PRIORITIES: Final = range(1, 6)
"""1 is first, 5 is last."""
_PRIORITY_TEXTS: Final = frozenset(map(str, PRIORITIES))
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_URL_EXAMPLE: Final = "like 'https://example.org/hooks/turnstile'"

_Written = Annotated[
    str,
    Field(pattern=r"^ *(([0-9]+(\.[0-9]+)? *([mM]?[sS]|[mMhHdD]) *)+|[0-9]+(\.[0-9]+)? *)$"),
]
_Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]

Duration = Annotated[
    float,
    BeforeValidator(
        parse_duration, json_schema_input_type=Annotated[_Seconds | _Written, Field(examples=["5m", 90])]
    ),
]
"""Seconds, read from `250ms`, `30s`, `1h30m` or a number."""

_PERIOD_MIN: Final = 0.001
_PERIOD_MAX: Final = 86400.0


def parse_period(text: object) -> float:
    """Return the seconds of the window of a rate; raises ValueError outside 1 ms to 1 day."""
    seconds = parse_duration(text)
    if not _PERIOD_MIN <= seconds <= _PERIOD_MAX:
        raise ValueError(
            f"{format_duration(seconds)} is not between 1ms and 1d; expected a duration like '1s' or '1m'"
        )
    return seconds


Period = Annotated[
    float,
    BeforeValidator(
        parse_period,
        json_schema_input_type=Annotated[
            Annotated[float, Field(ge=_PERIOD_MIN, le=_PERIOD_MAX)] | _Written, Field(examples=["1m", 60])
        ],
    ),
]
"""Seconds of the window of a rate, written like a duration."""


def check_resource(name: str) -> str:
    """Return `name` if it can name a resource; raises ValueError with the rule otherwise."""
    if not _RESOURCE.fullmatch(name):
        raise ValueError(
            f"{name[:60]!r} cannot name a resource: letters, digits, '_', '-' and '.', at most 64, "
            "like 'partner-api'"
        )
    return name


def check_ref(ref: str) -> str:
    """Return `ref` if it can name an action; raises ValueError with the rule otherwise."""
    if not _REF.fullmatch(ref):
        raise ValueError(
            f"{ref[:60]!r} cannot name an action: "
            "letters, digits, '_', '-' and '.', at most 200, like 'reports.render'"
        )
    return ref


def check_schedule(name: str) -> str:
    """Return `name` if it can name a schedule; raises ValueError with the rule otherwise."""
    if not _SCHEDULE.fullmatch(name):
        raise ValueError(
            f"{name[:60]!r} cannot name a schedule: letters, digits, '_', '-' and '.', at most 200, "
            "like 'nightly-report'"
        )
    return name


def is_pool(name: str) -> bool:
    """Return whether `name` can name a pool."""
    # `worker.retry` is the workers' delay queue.
    return bool(_POOL.fullmatch(name)) and name != "retry"


def check_pool(pool: str) -> str:
    """Return the name of a pool; raises ValueError for a name that no pool can have."""
    if not is_pool(pool):
        raise ValueError(
            f"{pool[:60]!r} cannot name a pool: letters, digits, '_' and '-', at most 64, like 'gpu'"
        )
    return pool


def _check_pointer(pointer: str) -> str:
    if not _POINTER.fullmatch(pointer):
        raise ValueError(
            f"{pointer[:60]!r} is not a JSON Pointer (RFC 6901) into the parameters, like '/customer/id'"
        )
    return pointer


SCHEDULE_KEY: Final = "schedule:"
"""What the idempotency key of an occurrence begins with; no request from outside may have one that does."""


def _not_reserved(key: str) -> str:
    if key.startswith(SCHEDULE_KEY):
        raise ValueError(f"keys that begin with '{SCHEDULE_KEY}' are those of schedules; choose another one")
    return key


def pointer_path(pointer: str) -> list[str]:
    """Split a JSON Pointer into its unescaped steps (RFC 6901, section 4)."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def check_callback_url(url: str) -> str:
    """Return `url` if webhooks can be posted to it; raises ValueError with the rule otherwise.

    Which addresses are allowed is checked at each connection (`executor.webhooks`): a name that is harmless
    today may resolve to any address tomorrow.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError(f"contains blanks or control characters; expected a URL {_URL_EXAMPLE}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"not a URL; expected one {_URL_EXAMPLE}") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"expected an http or https URL with a host, {_URL_EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "a name or password in the URL would be stored and shown; leave it out and check the signature"
        )
    return url


def check_instant(instant: datetime) -> datetime:
    """Return an aware `instant` if it is in the years 1970 to 8999; raises ValueError otherwise.

    PostgreSQL's driver turns the ends of Python's calendar into infinities, which cannot be read back, and
    other languages send those ends to mean "none".
    """
    try:
        utc = instant.astimezone(UTC)
    except OverflowError:
        utc = datetime.min.replace(tzinfo=UTC)
    if not _EARLIEST <= utc < _LATEST:
        raise ValueError(
            "expected an instant from 1970 to 8999, like 2026-11-21T12:00:00Z; leave it out if there is none"
        )
    return instant


def check_priority(value: object) -> int:
    """Return a priority that was read from JSON; raises ValueError with the range otherwise."""
    # A boolean is an int in Python, and equals 1 or 0.
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in PRIORITIES:
        raise ValueError(
            f"expected a whole number from {PRIORITIES[0]} (first) to {PRIORITIES[-1]} (last), "
            "or leave it out"
        )
    return int(value)


def parse_priority(text: object) -> int:
    """Return a priority that was written as text, in a query or on a command line; raises ValueError."""
    return check_priority(int(text) if isinstance(text, str) and text in _PRIORITY_TEXTS else text)


def _named(rule: re.Pattern[str], example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{rule.pattern}$", "examples": [example]})


ActionRef = Annotated[str, AfterValidator(check_ref), _named(_REF, "reports.render")]
ResourceName = Annotated[str, AfterValidator(check_resource), _named(_RESOURCE, "autocad")]
ScheduleName = Annotated[str, AfterValidator(check_schedule), _named(_SCHEDULE, "nightly-report")]
Pool = Annotated[str, AfterValidator(check_pool), _named(_POOL, "gpu")]
JsonPointer = Annotated[str, AfterValidator(_check_pointer)]
Instant = Annotated[AwareDatetime, AfterValidator(check_instant)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=512)]
NewKey = Annotated[Key, AfterValidator(_not_reserved)]
"""The idempotency key of a request."""
_PriorityNumber = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])]
Priority = Annotated[_PriorityNumber, BeforeValidator(check_priority)]
PriorityText = Annotated[_PriorityNumber, BeforeValidator(parse_priority)]
"""A priority in a query, where every value is text."""
CallbackUrl = Annotated[
    str,
    StringConstraints(pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://", max_length=2048),
    AfterValidator(check_callback_url),
]
