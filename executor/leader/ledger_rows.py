"""Which value of which row goes into which parameter of a turn's statement, and rows of a load as values.

In: the sequences of a `Turn`. Out: the parts of `turn.sql` that it needs, with their parameters.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import TERMINAL, Status
from turnstile.executor.leader.binary_arrays import (
    bigints,
    blobs,
    doubles,
    jsons,
    packed_instants,
    packed_integers,
    texts,
    uuids,
)
from turnstile.executor.leader.ports import StoredRequest
from turnstile.executor.leader.records import (
    Checkpoint,
    ClockChange,
    DefinitionRow,
    EarlyCancelRow,
    EventRow,
    GrantRow,
    Journal,
    LiveRow,
    PackedWaiting,
    ScheduleRow,
    SingletonRow,
    Turn,
    WaitingRow,
    WorkerRow,
)
from turnstile.executor.queue_manager.decisions import Passage
from turnstile.executor.sql import statements

if TYPE_CHECKING:
    import asyncpg

    Record: TypeAlias = asyncpg.Record

Encode: TypeAlias = Callable[[Sequence[Any]], bytes]
Value: TypeAlias = Callable[[Any], Any]


def turn_part(name: str) -> str:
    """Return a part of a turn's statement."""
    return _statements("turn.sql")[name]


def statement(name: str) -> str:
    """Return a statement of `reads.sql`."""
    return _statements("reads.sql")[name]


@cache
def _statements(file: str) -> Mapping[str, str]:
    """Return the statements of a file by name, without their comments."""
    return {
        name: "\n".join(line for line in each.splitlines() if not line.startswith("--"))
        for name, each in statements(f"leader/{file}").items()
    }


class Part:
    """A part of a turn's statement: its name in `turn.sql`, and its columns in the order of parameters."""

    __slots__ = ("_columns", "name")

    def __init__(self, name: str, *columns: tuple[Encode, str | Value]) -> None:
        """Each column is encoded from an attribute of each row, or from what a function returns of it."""
        self.name = name
        self._columns = [
            (encode, attrgetter(value) if isinstance(value, str) else value) for encode, value in columns
        ]

    @property
    def width(self) -> int:
        """How many parameters it has."""
        return len(self._columns)

    def parameters(self, rows: Sequence[Any]) -> list[bytes]:
        """Return one array per column. Raises ValueError or struct.error for what no server can store."""
        return [encode(list(map(value, rows))) for encode, value in self._columns]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _json_or_none(value: object) -> bytes | None:
    return _json(value) if value else None


def _numbers(values: Iterable[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def _error_type(row: Any) -> str | None:
    return None if row.error is None else row.error[0]


def _error_message(row: Any) -> str | None:
    return None if row.error is None else row.error[1]


def _of_first(value: str | Value) -> Value:
    get = attrgetter(value) if isinstance(value, str) else value
    return lambda pair: get(pair[0])


def _of_second(value: str | Value) -> Value:
    get = attrgetter(value) if isinstance(value, str) else value
    return lambda pair: get(pair[1])


def _of_caller(name: str) -> Value:
    return lambda pair: None if pair[1].changed_by is None else pair[1].changed_by.get(name)


def _ended_as(status: Status) -> Value:
    return lambda row: row.ended[status]


def _of_small(name: str) -> Value:
    """Return the value of an attribute, or None where another row has it already."""
    get = attrgetter(name)
    return lambda row: get(row) if row.body_id is None else None


_ADMITTED: Final[tuple[tuple[Encode, str | Value], ...]] = (
    (bigints, "id"), (texts, "action_ref"), (texts, "key"), (bigints, "priority"), (texts, "status"),
    (doubles, "created_at"), (doubles, "run_at"), (doubles, "expires_at"), (doubles, "timeout_seconds"),
    (jsons, _of_small("parameters")), (uuids, "request_hash"), (uuids, "delivery_key"),
    (texts, "idempotency_key"), (texts, "callback_url"), (jsons, _of_small("metadata")),
    (texts, "traceparent"), (bigints, "retry_of"), (uuids, "body_id"),
)  # fmt: skip
_ENDED: Final[tuple[tuple[Encode, str | Value], ...]] = (
    (bigints, "id"), (texts, "status"), (bigints, "attempt"), (bigints, "failures"), (bigints, "reclaims"),
    (texts, "worker_id"), (doubles, "queued_at"), (doubles, "scheduled_at"), (doubles, "started_at"),
    (doubles, "completed_at"), (jsons, "result"), (texts, _error_type), (texts, _error_message),
    (jsons, lambda row: _json_or_none(row.passages)),
)  # fmt: skip
_PARTS: Final = {
    part.name: part
    for part in (
        Part("admitted", *_ADMITTED),
        Part(
            "admitted_with_end",
            *((encode, _of_first(value)) for encode, value in _ADMITTED),
            *((encode, _of_second(value)) for encode, value in _ENDED),
        ),
        Part("ended", *_ENDED),
        Part("webhooks"),
        Part("webhooks_at_admission"),
        Part("pending", *_ENDED),
        Part(
            "attempts",
            (bigints, "execution_id"), (bigints, "attempt"), (texts, "outcome"), (texts, "worker_id"),
            (doubles, "scheduled_at"), (doubles, "started_at"), (doubles, "ended_at"), (texts, _error_type),
            (texts, _error_message),
        ),
        Part(
            "logs",
            (bigints, "execution_id"), (bigints, "attempt"), (bigints, "start"), (texts, "text"),
        ),
        Part(
            "progress",
            (bigints, "execution_id"), (bigints, "attempt"), (doubles, "done"), (doubles, "total"),
            (texts, "message"), (doubles, "at"),
        ),
        Part(
            "granted",
            (bigints, "epoch"), (bigints, "counter"), (texts, "worker_id"), (doubles, "granted_at"),
            (texts, lambda row: _numbers(row.execution_ids)),
            (texts, lambda row: _numbers([counter - row.counter for counter in row.counters])),
        ),
        Part("grants_over", (bigints, lambda key: key[0]), (bigints, lambda key: key[1])),
        Part(
            "live",
            (bigints, "id"), (texts, "action_ref"), (texts, "key"), (bigints, "priority"), (texts, "status"),
            (bigints, "attempt"), (bigints, "failures"), (bigints, "reclaims"), (doubles, "queued_at"),
            (doubles, "expires_at"), (doubles, "due_at"), (doubles, "ttl_seconds"),
            (doubles, "timeout_seconds"), (texts, "cancel_reason"),
            (doubles, "cancel_requested_at"),
            (bigints, lambda row: None if row.grant is None else row.grant.epoch),
            (bigints, lambda row: None if row.grant is None else row.grant.counter),
            (texts, "worker_id"), (doubles, "scheduled_at"), (doubles, "started_at"),
            (jsons, lambda row: _json_or_none(row.held)), (bigints, "is_holding"), (bigints, "is_impatient"),
            (jsons, lambda row: _json_or_none(row.passages)),
        ),
        Part("live_over", (bigints, int)),
        Part(
            "waiting",
            (bigints, "id"), (texts, "action_ref"), (texts, "key"), (bigints, "priority"),
            (doubles, "queued_at"), (doubles, "expires_at"),
        ),
        Part("waiting_over", (bigints, int)),
        Part(
            "workers",
            (texts, "worker_id"), (bigints, "session"), (texts, lambda row: row.secret_hash.hex()),
            (texts, "name"), (jsons, lambda row: _json(row.pools)), (jsons, lambda row: _json(row.actions)),
            (bigints, "concurrency"), (doubles, "lease_seconds"), (bigints, "is_taking"),
            (bigints, "is_draining"), (jsons, lambda row: _json(dict(row.about))), (texts, "not_ready"),
            (doubles, "draining_at"), (bigints, "draining_count"), (doubles, "registered_at"),
            (doubles, "heard_at"), (doubles, "gone_at"), (texts, "gone_why"),
            (texts, lambda row: None if row.held_ids is None else _numbers(row.held_ids)),
        ),
        Part(
            "definitions",
            (texts, _of_second("kind")), (texts, _of_second("name")),
            (jsons, lambda pair: _json(dict(pair[1].body))), (doubles, lambda pair: pair[0]),
        ),
        Part("definitions_over", (texts, "kind"), (texts, "name")),
        Part(
            "schedules",
            (texts, "name"), (bigints, "decided_at"), (doubles, "wake_at"), (bigints, "execution_id"),
            (bigints, "admitted"), (bigints, "skipped"), (bigints, "refused"), (bigints, "missed_at"),
            (texts, "problem"),
        ),
        Part("schedules_over", (texts, str)),
        Part("action_ids", (texts, lambda pair: pair[0]), (bigints, lambda pair: pair[1])),
        Part(
            "audit",
            (doubles, lambda pair: pair[0]), (texts, _of_second("verb")), (texts, _of_second("subject_kind")),
            (texts, _of_second("subject")), (texts, _of_second("action_ref")),
            *((texts, _of_caller(name)) for name in ("name", "address", "channel")),
            (jsons, lambda pair: _json(dict(pair[1].before))),
            (jsons, lambda pair: _json(dict(pair[1].after))),
        ),
        Part("events", (bigints, "id"), (blobs, "body")),
        Part("events_over", (bigints, int)),
        Part(
            "early_cancels",
            (bigints, "id"), (bigints, "execution_id"), (texts, "idempotency_key"), (texts, "reason"),
            (doubles, "kept_until"), (texts, "properties"),
        ),
        Part("early_cancels_over", (bigints, int)),
        Part(
            "singletons",
            (bigints, "execution_id"), (texts, "action_ref"), (texts, "singleton"), (texts, "key"),
            (bigints, "priority"),
        ),
        Part("singletons_over", (bigints, int)),
        Part("bodies_over", (uuids, lambda body_id: body_id)),
        Part("inbox_begun", (uuids, lambda pair: pair[0]), (bigints, lambda pair: pair[1])),
        Part("inbox_over", (bigints, int)),
        Part(
            "minutes",
            (doubles, "at"), (texts, "action_ref"), (bigints, "epoch"), (bigints, "admitted"),
            (bigints, "started"), *((bigints, _ended_as(status)) for status in Status if status in TERMINAL),
            (doubles, "slot_seconds"), (texts, lambda row: str(row.waiting)),
            (texts, lambda row: str(row.running)),
        ),
        Part(
            "answers",
            (uuids, lambda triple: triple[0]), (doubles, lambda triple: triple[1]),
            (blobs, lambda triple: triple[2]),
        ),
    )
}  # fmt: skip
ANSWERS_SECONDS: Final = 600.0
"""How long the repetition of a command finds the answer."""
OUTCOMES_SECONDS: Final = 7 * 86400.0
"""How long `turnstile.submission` knows that a request was refused."""
_COMMON: Final = (
    ("admitted",),
    ("ended", "webhooks"),
    ("granted",),
    ("grants_over",),
    ("waiting", "waiting_over"),
    ("attempts", "live", "live_over"),
    ("logs", "progress"),
    ("bodies_over",),
    ("schedules",),
)
_GROUPS: Final = (*_COMMON, tuple(name for name in _PARTS if all(name not in group for group in _COMMON)))
"""Parts that come together or not at all, so that there are few statements: each is planned once."""
_AS_THEY_ARE: Final = tuple(
    name
    for name in _PARTS
    if name in Turn.__slots__ and name not in ("admitted", "ended", "definitions", "audit", "answers")
)
"""Parts whose rows are those of a field of the turn."""


def parts_of(turn: Turn, locked: Collection[int]) -> list[tuple[Part, Sequence[Any]]]:
    """Return the parts that a turn needs, with their rows; the ends of `locked` executions are pending."""
    rows: dict[str, Sequence[Any]] = {name: getattr(turn, name) for name in _AS_THEY_ARE}
    rows["admitted"], rows["ended"] = turn.admitted, turn.ended
    if turn.admitted and turn.ended:
        ends = {row.id: row for row in turn.ended}
        both = [(row, ends[row.id]) for row in turn.admitted if row.id in ends]
        if both:
            # One statement sees none of its own rows, so what it inserts it cannot update.
            ids = {row.id for row, _ in both}
            rows["admitted"] = [row for row in turn.admitted if row.id not in ids]
            rows["ended"] = [row for row in turn.ended if row.id not in ids]
            rows["admitted_with_end"] = both
    if locked:
        rows["pending"] = [row for row in rows["ended"] if row.id in locked]
        rows["ended"] = [row for row in rows["ended"] if row.id not in locked]
    if turn.definitions:
        last = {(row.kind, row.name): row for row in turn.definitions}.values()
        rows["definitions"] = [(turn.at, row) for row in last if row.body is not None]
        rows["definitions_over"] = [row for row in last if row.body is None]
    rows["audit"] = [(turn.at, row) for row in turn.audit]
    if turn.answers or turn.outcomes:
        rows["answers"] = [
            (key, turn.at + seconds, body)
            for seconds, answers in ((ANSWERS_SECONDS, turn.answers), (OUTCOMES_SECONDS, turn.outcomes))
            for key, body in answers
        ]
    return [
        (_PARTS[name], rows.get(name, ()))
        for group in _GROUPS
        if any(rows.get(name) for name in group)
        for name in group
    ]


# What travels in the rows of turns.


def journal_text(journal: Journal) -> str | None:
    """Return a journal as JSON; None for an empty one."""
    return _changes_text(journal) if journal else None


def checkpoint_text(checkpoint: Checkpoint | None) -> str | None:
    """Return a checkpoint as JSON."""
    return None if checkpoint is None else _changes_text(checkpoint)


def _changes_text(changes: Journal | Checkpoint) -> str:
    clocks = [(each.gate, each.priority, each.virtual, dict(each.finish)) for each in changes.clocks]
    body = {
        "totals": dict(changes.totals),
        "clocks": clocks,
        "starts": dict(changes.starts),
        "ended": list(changes.ended),
    }
    return json.dumps(body, separators=(",", ":"))


def journal_of(text: str) -> Journal:
    """Return the journal of its JSON."""
    return Journal(**_changes(text))


def checkpoint_of(text: str) -> Checkpoint:
    """Return the checkpoint of its JSON."""
    return Checkpoint(**_changes(text))


def _changes(text: str) -> Mapping[str, Any]:
    body = json.loads(text)
    clocks = [
        ClockChange(gate=gate, priority=priority, virtual=virtual, finish=finish)
        for gate, priority, virtual, finish in body["clocks"]
    ]
    return {
        "totals": {ref: tuple(pair) for ref, pair in body["totals"].items()},
        "clocks": tuple(clocks),
        "starts": {rate: tuple(instants) for rate, instants in body["starts"].items()},
        "ended": tuple(body["ended"]),
    }


# Rows of a load.


def packed_of(row: "Record") -> PackedWaiting:
    """Return what waits in one queue."""
    return PackedWaiting(
        action_ref=row["action_ref"], key=row["key"], priority=row["priority"],
        ids=packed_integers(row["ids"]), queued_at=packed_instants(row["queued_at"]),
        expires_at=packed_instants(row["expires_at"]),
    )  # fmt: skip


def waiting_of(row: "Record") -> WaitingRow:
    """Return an execution that has not ended."""
    return WaitingRow(**row)


def grant_of(row: "Record") -> GrantRow:
    """Return what a worker was granted in a turn."""
    fields = dict(row)
    counter, offsets = fields["counter"], fields.pop("offsets")
    fields["execution_ids"] = tuple(fields["execution_ids"])
    return GrantRow(**fields, counters=tuple(counter + offset for offset in offsets))


def live_of(row: "Record") -> LiveRow:
    """Return an execution with a past."""
    fields = dict(row)
    epoch, counter = fields.pop("grant_epoch"), fields.pop("grant_counter")
    fields["grant"] = None if epoch is None else Grant(epoch, counter)
    fields["status"] = Status(fields["status"])
    fields["held"] = tuple((name, units) for name, units in json.loads(fields["held"] or "[]"))
    fields["passages"] = tuple(Passage(*each) for each in json.loads(fields["passages"] or "[]"))
    return LiveRow(**fields)


def worker_of(row: "Record") -> WorkerRow:
    """Return a worker that is not gone."""
    fields = dict(row)
    fields["about"] = json.loads(fields["about"])
    fields["pools"] = tuple(fields["pools"])
    fields["actions"] = None if fields["actions"] is None else tuple(fields["actions"])
    return WorkerRow(**fields)


def definition_of(row: "Record") -> DefinitionRow:
    """Return a definition."""
    return DefinitionRow(kind=row["kind"], name=row["name"], body=json.loads(row["body"]))


def schedule_of(row: "Record") -> ScheduleRow:
    """Return what was decided of a schedule."""
    return ScheduleRow(**row)


def stored_request_of(row: "Record") -> StoredRequest:
    """Return what the offer of an execution needs."""
    return StoredRequest(
        parameters=row["parameters"].encode(),
        metadata=None if row["metadata"] is None else row["metadata"].encode(),
        traceparent=row["traceparent"],
        idempotency_key=row["idempotency_key"],
    )


def event_of(row: "Record") -> EventRow:
    """Return a message that is to be published."""
    return EventRow(**row)


def singleton_of(row: "Record") -> SingletonRow:
    """Return a living execution with the name that it has alone."""
    return SingletonRow(**row)


def early_cancel_of(row: "Record") -> EarlyCancelRow:
    """Return a cancel of something that was not known."""
    return EarlyCancelRow(**row)
