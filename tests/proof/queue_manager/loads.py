"""A ledger in memory beside an explored system: a load of it finds the state of the system, after each turn.

The rows are those that the product writes (`rows_of`), applied by key, and the load is the product's
(`state_of`). What other parts of the leader write, workers and definitions, follows from the inputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from tests.proof.queue_manager.recount import must
from tests.support.snapshots import snapshot_of
from turnstile.common.worker_protocol import AttemptEnded
from turnstile.executor.leader.loading import Memory, state_of
from turnstile.executor.leader.ports import Request
from turnstile.executor.leader.records import (
    Checkpoint,
    DefinitionRow,
    GrantRow,
    Journal,
    LiveRow,
    Loaded,
    WaitingRow,
    WorkerRow,
)
from turnstile.executor.leader.writing import Rows, rows_of
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.inputs import (
    DefineAction,
    DefinePool,
    DefineResource,
    DeleteAction,
    Ended,
    Input,
    SetKey,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.runs import may_have_runs
from turnstile.executor.queue_manager.state import State

_JOURNALS: Final = 3
"""Turns with a journal between two checkpoints, so that both are read by loads."""


class Door(NamedTuple):
    """The source of an admission, as far as the ledger reads it."""

    request: Request
    delivery_key: UUID | None = None


class Envelope(NamedTuple):
    """A delivery with a report, and the report."""

    body: Any


def door(ref: str) -> Door:
    return Door(Request(action_ref=ref, parameters=b"{}", request_hash=UUID(int=0)))


def with_report(each: Ended) -> Ended:
    report = AttemptEnded(execution_id=each.execution_id, grant=each.grant, status=each.status)
    return replace(each, source=Envelope(Envelope(report)))


@dataclass(slots=True)
class Ledger:
    """What is committed, and what the leader remembers of it."""

    memory: Memory = field(default_factory=Memory)
    admitted: dict[int, WaitingRow] = field(default_factory=dict)
    """The records of what has not ended."""
    waiting: dict[int, WaitingRow] = field(default_factory=dict)
    live: dict[int, LiveRow] = field(default_factory=dict)
    grants: dict[tuple[int, int], GrantRow] = field(default_factory=dict)
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    definitions: dict[tuple[str, str], DefinitionRow] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    journals: list[Journal] = field(default_factory=list)
    low_id: int = 1
    reserved_id: int = 1
    instant_max: float = 0.0

    def write(self, state: State, inputs: Iterable[Input], out: Decisions) -> None:
        """Write a turn."""
        deleted = iter(out.deleted)
        for each in inputs:
            self._write_input(each, deleted)
        if len(self.journals) >= _JOURNALS:
            self.memory.journals = 10**6
        recent = self.memory.recent
        self._apply(rows_of(state, self.memory, out), out)
        # The product forgets these after a second; here time may stand still.
        recent[:] = [row for row in recent if row.id in self.admitted]
        self.instant_max = max(self.instant_max, state.now)

    def _write_input(self, each: Input, deleted: Iterator[tuple[bool, int, int, Any]]) -> None:
        match each:
            case DefineAction(action=definition):
                self._define("action", definition.ref, asdict(definition))
            case DefineResource(resource=definition):
                self._define("resource", definition.name, asdict(definition))
            case DefinePool(pool=definition):
                self._define("pool", definition.name, asdict(definition))
            case SetKey(action_ref=ref, key=key, settings=settings):
                body = None if settings is None else {"action_ref": ref, "key": key, **asdict(settings)}
                if ("action", ref) in self.definitions:
                    self._define("key", f"{ref}/{key}", body)
            case DeleteAction(ref=ref):
                is_deleted, *_ = next(deleted)
                if is_deleted:
                    self._define("action", ref, None)
                    for kind, name in [key for key in self.definitions if key[1].startswith(f"{ref}/")]:
                        del self.definitions[kind, name]
            case WorkerChanged(worker_id=name):
                actions = None if each.actions is None else tuple(sorted(each.actions))
                self.workers[name] = WorkerRow(
                    worker_id=name, session=1, secret_hash=b"", name=name, pools=tuple(sorted(each.pools)),
                    actions=actions, concurrency=each.concurrency, lease_seconds=1.0,
                    is_taking=each.is_taking,
                )  # fmt: skip
            case WorkerGone(worker_id=name):
                self.workers.pop(name, None)
            case _:
                pass

    def _define(
        self, kind: Literal["action", "key", "resource", "pool"], name: str, body: dict[str, Any] | None
    ) -> None:
        self.definitions.pop((kind, name), None)
        if body is not None:
            self.definitions[kind, name] = DefinitionRow(kind=kind, name=name, body=body)

    def _apply(self, rows: Rows, out: Decisions) -> None:
        for each in out.admitted:
            self.admitted[each.id] = WaitingRow(
                id=each.id, action_ref=each.queue.action.ref, key=each.queue.key, priority=each.priority,
                queued_at=each.queued_at, expires_at=None if each.expires_at == inf else each.expires_at,
            )  # fmt: skip
        for ended in rows.ended:
            must("load", self.admitted.pop(ended.id, None) is not None, ended.id, "ended, and was not open")
        self.grants.update(((row.epoch, row.counter), row) for row in rows.granted)
        for key in rows.grants_over:
            must("load", self.grants.pop(key, None) is not None, "grant row", key, "does not exist")
        self.live.update((row.id, row) for row in rows.live)
        for execution_id in rows.live_over:
            self.live.pop(execution_id, None)
        self.waiting.update((row.id, row) for row in rows.waiting)
        for execution_id in rows.waiting_over:
            self.waiting.pop(execution_id, None)
        self.low_id = self.low_id if rows.low_id is None else rows.low_id
        self.reserved_id = self.reserved_id if rows.reserved_id is None else rows.reserved_id
        if rows.checkpoint is not None:
            self.checkpoint, self.journals = rows.checkpoint, []
        elif rows.journal:
            self.journals.append(rows.journal)

    def loaded(self, epoch: int) -> Loaded:
        """Return what a load finds now."""
        waiting = {row.id: row for row in self.admitted.values() if row.id >= self.low_id} | self.waiting
        for execution_id in self.admitted:
            is_found = execution_id in waiting or execution_id in self.live
            must("load", is_found, execution_id, "is open, and a load does not find it")
        return Loaded(
            epoch=epoch, now=self.instant_max, reserved_id=self.reserved_id, low_id=self.low_id,
            definitions=list(self.definitions.values()), waiting=[waiting[each] for each in sorted(waiting)],
            grants=list(self.grants.values()), live=list(self.live.values()),
            workers=list(self.workers.values()), events=(), early_cancels=(), checkpoint=self.checkpoint,
            journals=self.journals, instant_max=self.instant_max,
        )  # fmt: skip


def check_load(ledger: Ledger, state: State) -> tuple[State, Memory]:
    """Return what a new leader would have now: the same state. Raises Violation."""
    found, memory = state_of(ledger.loaded(state.epoch + 1))
    found.now = max(found.now, state.now)
    mine, theirs = _comparable(state), _comparable(found)
    for name, value in mine.items():
        must("load", value == theirs[name], name, "are", value, "and a load finds", theirs[name])
    for action in found.actions.values():
        for queue in action.queues.values():
            has_run = len(queue.at) == 1 and queue.limit is not None and may_have_runs(action.definition)
            beyond = max(queue.held - (queue.limit or 0), 0) if has_run else 0
            must("load", queue.surplus == beyond, action.ref, queue.key, "has a run of", queue.surplus)
    return found, memory


def _comparable(state: State) -> dict[str, Any]:
    """Return a snapshot without what a load cannot know: that a first grant passed a total which is gone."""
    snapshot = snapshot_of(state)
    snapshot["executions"] = {
        execution_id: tuple(() if _is_of_first_grant(value) else value for value in values)
        for execution_id, values in snapshot["executions"].items()
    }
    snapshot["totals"] = {ref: totals for ref, totals in snapshot["totals"].items() if totals != (0, 0)}
    return snapshot


def _is_of_first_grant(value: object) -> bool:
    return isinstance(value, tuple) and [getattr(each, "gate", "") for each in value] == ["queue", "total"]


def hellos(state: State) -> list[Input]:
    """What the workers say to a new leader: the same as they offered before."""
    return [
        WorkerChanged(
            worker_id=each.id, pools=frozenset(each.pools), concurrency=each.concurrency,
            actions=each.actions, is_taking=each.is_taking, is_answer=True,
        )
        for each in state.workers.values()
    ]  # fmt: skip
