"""When an action runs by itself: the same in code, in `actions.yaml`, over HTTP and in the database.

In: fields as users write them. Out: a checked definition; its occurrences, which are whole seconds since
1970; and what of them a leader decides now. Pure: each occurrence follows from the definition alone, so a new
leader, a preview and the checker of a history find the same ones. Cron expressions and changes of daylight
saving time are those of Debian's cron, by `cronsim`.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from turnstile.common.fields import SCHEDULE_KEY, ActionRef, Duration, Instant, Key, Priority, ScheduleName

LATE_SECONDS: Final = 60
"""What is decided so long after its instant, jitter added, was missed: `catch_up` says whether it runs."""
CATCH_UP_MAX: Final = 1000
EVERY_MAX: Final = 366 * 86400
JITTER_MAX: Final = 86400

_REQUESTED: Final = ("parameters", "concurrency_key", "priority", "timeout", "ttl")


def _check_zone(name: str) -> str:
    zone_of(name)
    return name


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone; raises ValueError for a name that this host does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{name[:60]!r} is not a time zone of this host; expected a name like 'Europe/Berlin' or 'UTC'"
        ) from None


class ScheduleDefinition(BaseModel):
    """Everything that defines a schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: ScheduleName = Field(description="The schedule's name.")
    action_ref: ActionRef = Field(description="The action that runs.")
    cron: str | None = Field(
        default=None,
        max_length=200,
        description="Five fields: minute, hour, day of the month, month, day of the week; or six, with the "
        "second first. Either this or `every`.",
        examples=["0 6 * * MON-FRI"],
    )
    every: Duration | None = Field(
        default=None,
        description="Whole seconds between occurrences, counted from `start_at`, else from the beginning of "
        "1970.",
        examples=["15m"],
    )
    timezone: Annotated[str, AfterValidator(_check_zone)] = Field(
        default="UTC", description="The IANA time zone in which `cron` is read.", examples=["Europe/Berlin"]
    )
    parameters: dict[str, JsonValue] = Field(default_factory=dict, description="Those of each execution.")
    concurrency_key: Key | None = Field(default=None, description="That of each execution.")
    priority: Priority | None = Field(default=None, description="That of each execution.")
    timeout: Duration | None = Field(default=None, description="That of each execution; null: the action's.")
    ttl: Duration | None = Field(default=None, description="That of each execution; null: the action's.")
    overlap: Literal["queue", "skip", "cancel_running"] = Field(
        default="queue",
        description="If the execution of the last occurrence has not ended. queue: the next one is admitted, "
        "and waits as any; skip: it is left out; cancel_running: it is admitted, and the last one cancelled.",
    )
    catch_up: Literal["none", "one", "all"] = Field(
        default="one",
        description="Which occurrences run that were missed by more than a minute while no executor led: "
        "none, the newest one, or all, at most the newest `catch_up_max`.",
    )
    catch_up_max: int = Field(default=100, ge=1, le=CATCH_UP_MAX, description="For `catch_up: all`.")
    jitter: Duration = Field(
        default=0.0,
        description="Each occurrence is admitted up to so much later, by an amount that follows from its "
        "name and instant. At most a day, and at most `every`.",
    )
    start_at: Instant | None = Field(default=None, description="No occurrence is before this instant.")
    end_at: Instant | None = Field(default=None, description="No occurrence is after this instant.")
    paused: bool = Field(default=False, description="No occurrence counts while it is paused.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if (self.cron is None) == (self.every is None):
            raise ValueError(
                "cron, every: give exactly one of them, like {cron: '0 6 * * *'} or {every: 15m}"
            )
        if self.every is not None and not (1 <= self.every <= EVERY_MAX and self.every.is_integer()):
            raise ValueError("every: expected whole seconds from 1s to 366d, like 15m")
        if self.jitter > min(JITTER_MAX, self.every or JITTER_MAX):
            raise ValueError("jitter: expected at most 1d, and at most `every`")
        if self.start_at is not None and self.end_at is not None and self.end_at < self.start_at:
            raise ValueError("end_at: is before start_at; expected a later instant")
        if self.cron is not None:
            self._check_cron(self.cron)
        if self.next_after(self._first - 1) is None:
            raise ValueError("end_at: no occurrence is between start_at and end_at; expected a later instant")
        return self

    def _check_cron(self, cron: str) -> None:
        try:
            next(CronSim(cron, datetime.now(zone_of(self.timezone))), None)
        except (CronSimError, ValueError) as error:
            why = str(error)
            if why == "Bad day-of-month":
                why = "no month that it names has such a day, so it would never fire"
            raise ValueError(
                f"cron: {cron[:60]!r} is not accepted: {why}; expected minute, hour, day of the month, month "
                "and day of the week, like '0 6 * * MON-FRI'"
            ) from None

    # Occurrences.

    @property
    def _first(self) -> int:
        return 0 if self.start_at is None else math.ceil(self.start_at.timestamp())

    @property
    def _last(self) -> float:
        return math.inf if self.end_at is None else self.end_at.timestamp()

    def next_after(self, at: float) -> int | None:
        """Return the first occurrence after an instant; None: there is none."""
        at = max(math.floor(at), self._first - 1)
        if self.every is not None:
            every, anchor = int(self.every), self._first
            found: int | None = anchor + ((at - anchor) // every + 1) * every
        else:
            found = self._from_cron(at, reverse=False)
        return found if found is not None and found <= self._last else None

    def last_until(self, at: float) -> int | None:
        """Return the last occurrence that is not after an instant; None: there is none."""
        at = math.floor(min(at, self._last))
        if self.every is not None:
            found: int | None = self._first + (at - self._first) // int(self.every) * int(self.every)
        else:
            found = self._from_cron(at + 1, reverse=True)
        return found if found is not None and found >= self._first else None

    def _from_cron(self, at: int, *, reverse: bool) -> int | None:
        assert self.cron is not None
        begin = datetime.fromtimestamp(at, zone_of(self.timezone))
        found = next(CronSim(self.cron, begin, reverse=reverse), None)
        return None if found is None else round(found.timestamp())

    def due_at(self, occurrence: int) -> float:
        """Return when an occurrence is admitted: its jitter is the same wherever it is computed."""
        if not self.jitter:
            return float(occurrence)
        digest = hashlib.blake2b(f"{self.name}:{occurrence}".encode(), digest_size=8).digest()
        return occurrence + self.jitter * int.from_bytes(digest) / 2**64

    def preview(self, after: float, count: int) -> Iterator[int]:
        """Yield the next occurrences after an instant, also of a paused schedule."""
        for _ in range(count):
            found = self.next_after(after)
            if found is None:
                return
            yield found
            after = found

    def stored(self) -> dict[str, Any]:
        """Return it as JSON without what is the default: an executor may hold 100,000."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What is decided of a schedule now."""

    admitted: tuple[int, ...]
    decided: int
    """No occurrence up to this instant is decided again."""
    wake_at: float | None
    """When the next one is to be decided; None: never."""
    missed: int | None = None
    """The last occurrence that `catch_up` left out."""


def advance(schedule: ScheduleDefinition, decided: int, now: float, most: int) -> Advance:
    """Return the occurrences to admit now, at most so many, in their order.

    What was missed is counted back from now, so an outage of any length costs the same.
    """
    admitted: list[int] = []
    missed = None
    late_until = math.floor(now - LATE_SECONDS - schedule.jitter)
    first = schedule.next_after(decided)
    if first is not None and first <= late_until:
        admitted = _caught_up(schedule, decided, late_until)
        left_out = late_until if not admitted else admitted[0] - 1
        missed = schedule.last_until(left_out)
        missed = missed if missed is not None and missed > decided else None
        if len(admitted) > most:
            admitted = admitted[:most]
            return Advance(admitted=tuple(admitted), decided=admitted[-1], wake_at=now, missed=missed)
        decided = late_until
    while (following := schedule.next_after(decided)) is not None:
        due_at = schedule.due_at(following)
        if due_at > now or len(admitted) >= most:
            return Advance(
                admitted=tuple(admitted), decided=decided, wake_at=max(due_at, now), missed=missed
            )  # fmt: skip
        admitted.append(following)
        decided = following
    return Advance(admitted=tuple(admitted), decided=decided, wake_at=None, missed=missed)


def _caught_up(schedule: ScheduleDefinition, after: int, until: int) -> list[int]:
    """Return which missed occurrences run, in their order."""
    most = {"none": 0, "one": 1, "all": schedule.catch_up_max}[schedule.catch_up]
    found: list[int] = []
    while len(found) < most and (last := schedule.last_until(until)) is not None and last > after:
        found.append(last)
        until = last - 1
    return found[::-1]


def request_body(schedule: ScheduleDefinition) -> dict[str, Any]:
    """Return what an execution of a schedule is requested with."""
    given = {name: value for name in _REQUESTED if (value := getattr(schedule, name)) is not None}
    return {"action_ref": schedule.action_ref, "metadata": {"schedule": schedule.name}, **given}


# Occurrences as idempotency keys.


def key_of(name: str, occurrence: int) -> str:
    """Return the idempotency key of an occurrence."""
    return f"{SCHEDULE_KEY}{name}:{datetime.fromtimestamp(occurrence, UTC):%Y-%m-%dT%H:%M:%SZ}"


def occurrence_of(idempotency_key: str | None) -> tuple[str, datetime] | None:
    """Return the schedule and the instant that a key names; None: it is another key."""
    if idempotency_key is None or not idempotency_key.startswith(SCHEDULE_KEY):
        return None
    name, _, instant = idempotency_key.removeprefix(SCHEDULE_KEY).partition(":")
    return name, datetime.fromisoformat(instant)
