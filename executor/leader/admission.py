"""Requests and commands as inputs of a turn: what is a duplicate, what is too early, who is answered.

Message keys, idempotency keys and ids that are not in memory were looked up before (`ports.Store.look_up`).
So a repetition is decided, inside one batch, across turns, and after a takeover: the constraint behind it
never speaks.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.worker_protocol import Hello
from turnstile.executor.leader.loading import input_of
from turnstile.executor.leader.ports import (
    CancelRequest,
    DefinitionCommand,
    Delivery,
    InboxRow,
    Publication,
    Request,
)
from turnstile.executor.leader.records import DefinitionRow, EarlyCancelRow, Known
from turnstile.executor.queue_manager.decisions import Admitted, Cancelled, Decisions, Refused
from turnstile.executor.queue_manager.inputs import Admit, Cancel, DeleteAction, Input
from turnstile.executor.queue_manager.state import State

_RECENT_MAX: Final = 50_000
EARLY_SECONDS: Final = 60.0
"""How long a cancel waits for the execution that it names."""
_EARLY_MAX: Final = 10_000

Keys = UUID | str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a request or command came from, and who wants an answer."""

    request: Request | CancelRequest | DefinitionCommand
    delivery_key: UUID | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    command_id: UUID | None = None


def source_of(each: Delivery | InboxRow) -> Source:
    """Return a message or a command of the inbox as a source."""
    if isinstance(each, InboxRow):
        return Source(request=each.body, delivery_key=each.command_id, command_id=each.command_id)
    body = each.body
    assert isinstance(body, Request | CancelRequest)
    return Source(
        request=body,
        delivery_key=each.delivery_key,
        reply_to=each.reply_to,
        correlation_id=each.correlation_id,
    )


class Admission:
    """Decides requests and commands before the queue manager does. One per epoch."""

    def __init__(self, early: Iterable[EarlyCancelRow]) -> None:
        self.rows: list[DefinitionRow] = []
        """Definitions that the turn writes."""
        self.early_rows: list[EarlyCancelRow] = []
        self.early_over: list[int] = []
        self.publications: list[Publication] = []
        self.answers: list[tuple[UUID, Mapping[str, Any]]] = []
        self._recent: OrderedDict[Keys, Known] = OrderedDict()
        self._early = {row.id: row for row in early}
        self._next_early = max(self._early, default=0) + 1
        self._pending: dict[Keys, Source] = {}
        """Requests of this turn whose ids are not known yet, by their keys."""
        self._copies: dict[int, list[Source]] = {}
        """Copies of these, by the identity of the first one."""
        self._cancels: dict[int, list[Source]] = {}
        """Cancels of these."""
        self._early_sources: dict[int, Source] = {}

    def has_early(self) -> bool:
        """Return whether a cancel waits for an execution that this turn may admit."""
        return bool(self._early or self._cancels)

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self.rows, self.early_rows, self.early_over, self.answers = [], [], [], []

    def take_publications(self) -> list[Publication]:
        """Return the replies and dead letters of the committed turn."""
        found, self.publications = self.publications, []
        return found

    def missing(self, sources: Iterable[Source]) -> tuple[list[UUID], list[str], list[int]]:
        """Return the message keys, idempotency keys and ids that must be looked up."""
        keys: dict[UUID, None] = {}
        names: dict[str, None] = {}
        ids: dict[int, None] = {}
        for source in sources:
            request = source.request
            if isinstance(request, Request):
                if source.delivery_key is not None and source.delivery_key not in self._recent:
                    keys[source.delivery_key] = None
                if request.idempotency_key is not None and request.idempotency_key not in self._recent:
                    names[request.idempotency_key] = None
            elif isinstance(request, CancelRequest):
                if request.execution_id is not None and request.execution_id not in self._recent:
                    ids[request.execution_id] = None
                if request.idempotency_key is not None and request.idempotency_key not in self._recent:
                    names[request.idempotency_key] = None
        return list(keys), list(names), list(ids)

    def learn(self, known: Mapping[Keys, Known]) -> None:
        """Remember what a look-up found."""
        self._recent.update(known)

    def inputs(self, source: Source, now: float) -> Iterator[Input]:
        """Yield what a request or command asks of the queue manager; duplicates are answered instead."""
        match source.request:
            case Request() as request:
                yield from self._request(source, request)
            case CancelRequest() as request:
                yield from self._cancel(source, request, now)
            case DefinitionCommand() as command:
                yield from self._definition(source, command)

    # Requests.

    def _request(self, source: Source, request: Request) -> Iterator[Input]:
        keys: list[Keys] = [key for key in (source.delivery_key, request.idempotency_key) if key is not None]
        for key in keys:
            if (known := self._recent.get(key)) is not None:
                self._repeated(source, request, known)
                return
            if (first := self._pending.get(key)) is not None:
                # Decided in this turn: its id is known after the decision.
                self._copies.setdefault(id(first), []).append(source)
                return
        for key in keys:
            self._pending[key] = source
        yield Admit(
            action_ref=request.action_ref, key=request.key, priority=request.priority, run_at=request.run_at,
            ttl_seconds=request.ttl_seconds, timeout_seconds=request.timeout_seconds, source=source,
        )  # fmt: skip

    def _repeated(self, source: Source, request: Request, known: Known) -> None:
        if known.request_hash != request.request_hash:
            key = request.idempotency_key
            message = (
                f"idempotency_key {key!r} was used by execution {known.execution_id} with another request"
            )
            self._reject(source, Code.IDEMPOTENCY_CONFLICT, message)
            return
        self._reply(source, {
            "type": "execution.accepted", "execution_id": known.execution_id, "status": known.status,
            "position": None, "duplicate": True,
        })  # fmt: skip

    def decided(self, out: Decisions) -> Iterator[Input]:
        """Answer what was decided, and yield the cancels that came before their executions."""
        for admitted in out.admitted:
            yield from self._admitted(admitted)
        for refused in out.refused:
            self._refused(refused)
        for cancelled in out.cancelled:
            self._cancelled(cancelled)
        for is_deleted, waiting, running, source in out.deleted:
            self._deleted(source, is_deleted, waiting, running)
        self._pending.clear()
        self._copies.clear()
        self._cancels.clear()
        while len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)

    def _admitted(self, each: Admitted) -> Iterator[Input]:
        source, request = each.source, each.source.request
        status = Status.QUEUED if each.due_at is None else Status.DELAYED
        known = Known(
            execution_id=each.id, request_hash=request.request_hash, status=status,
            action_ref=request.action_ref, key=each.queue.key, priority=each.priority,
        )  # fmt: skip
        keys: list[Keys] = [key for key in (source.delivery_key, request.idempotency_key) if key is not None]
        for key in (*keys, each.id):
            self._recent[key] = known
        self._reply(source, {
            "type": "execution.accepted", "execution_id": each.id, "status": status,
            "position": each.position, "duplicate": False,
        })  # fmt: skip
        for copy in self._copies.get(id(source), ()):
            assert isinstance(copy.request, Request)
            self._repeated(copy, copy.request, known)
        for cancel in self._cancels.get(id(source), ()):
            assert isinstance(cancel.request, CancelRequest)
            yield self._cancel_input(known, cancel.request.reason, cancel)
        if self._early:
            yield from self._early_cancels(known, request.idempotency_key)

    def _refused(self, each: Refused) -> None:
        self._reject(each.source, each.code, each.message)
        for cancel in self._cancels.get(id(each.source), ()):
            self._reject(cancel, Code.UNKNOWN_EXECUTION, "its request was refused")
        for copy in self._copies.get(id(each.source), ()):
            self._reject(copy, each.code, each.message)

    # Cancels.

    def _cancel(self, source: Source, request: CancelRequest, now: float) -> Iterator[Input]:
        key: Keys | None = request.idempotency_key if request.execution_id is None else request.execution_id
        known = None if key is None else self._recent.get(key)
        if known is None:
            if key is not None and key in self._pending:
                # Its request is in this turn, before it.
                self._cancels.setdefault(id(self._pending[key]), []).append(source)
                return
            self._keep_early(source, request, now)
        elif is_terminal(known.status):
            self._reject(source, Code.ALREADY_TERMINAL, f"execution {known.execution_id} is {known.status}")
        else:
            yield self._cancel_input(known, request.reason, source)

    def _cancel_input(self, known: Known, reason: str, source: Source | None) -> Cancel:
        return Cancel(
            execution_id=known.execution_id, reason=reason, action_ref=known.action_ref, key=known.key,
            priority=known.priority, source=source,
        )  # fmt: skip

    def _keep_early(self, source: Source, request: CancelRequest, now: float) -> None:
        if len(self._early) >= _EARLY_MAX:
            self._reject(
                source, Code.UNKNOWN_EXECUTION, "too many cancels wait for executions; cancel it later"
            )
            return
        row = EarlyCancelRow(
            id=self._next_early, execution_id=request.execution_id, idempotency_key=request.idempotency_key,
            reason=request.reason, kept_until=now + EARLY_SECONDS,
        )  # fmt: skip
        self._next_early += 1
        self._early[row.id] = row
        self.early_rows.append(row)
        self._early_sources[row.id] = source

    def _early_cancels(self, known: Known, idempotency_key: str | None) -> Iterator[Input]:
        for row in list(self._early.values()):
            if row.execution_id == known.execution_id or (
                idempotency_key is not None and row.idempotency_key == idempotency_key
            ):
                self._forget_early(row.id)
                yield self._cancel_input(known, row.reason, None)

    def _forget_early(self, row_id: int) -> None:
        del self._early[row_id]
        self._early_sources.pop(row_id, None)
        before = len(self.early_rows)
        self.early_rows = [row for row in self.early_rows if row.id != row_id]
        if len(self.early_rows) == before:
            self.early_over.append(row_id)

    def expire_early(self, now: float) -> None:
        """Refuse cancels whose execution did not appear in time."""
        for row in [row for row in self._early.values() if row.kept_until <= now]:
            source = self._early_sources.get(row.id) or Source(
                request=CancelRequest(
                    execution_id=row.execution_id, idempotency_key=row.idempotency_key, reason=row.reason
                )
            )
            self._forget_early(row.id)
            name = row.idempotency_key if row.execution_id is None else row.execution_id
            self._reject(source, Code.UNKNOWN_EXECUTION, f"no execution {name} within {EARLY_SECONDS:g} s")

    def _cancelled(self, each: Cancelled) -> None:
        known = self._recent.get(each.cancel.execution_id)
        if each.status is Status.CANCELLED and known is not None:
            self._recent[each.cancel.execution_id] = replace(known, status=Status.CANCELLED)
        if each.cancel.source is None:
            return
        if each.had_ended:
            message = f"execution {each.cancel.execution_id} has ended"
            self._reject(each.cancel.source, Code.ALREADY_TERMINAL, message)
        else:
            self._reply(each.cancel.source, {
                "type": "execution.cancel_accepted", "execution_id": each.cancel.execution_id,
                "status": each.status,
            })  # fmt: skip

    # Definitions.

    def _definition(self, source: Source, command: DefinitionCommand) -> Iterator[Input]:
        if command.kind == "worker":
            return
        if command.kind == "action" and command.definition is None:
            yield DeleteAction(
                ref=command.name, reason="its action was deleted", cancel_max=1000, source=source
            )
            return
        row = DefinitionRow(
            kind=command.kind, name=command.name, body=command.definition, changed_by=command.changed_by
        )
        self.rows.append(row)
        yield input_of(row)
        self._reply(source, {"type": "defined", "name": command.name})

    def _deleted(self, source: Source, is_deleted: bool, waiting: int, running: int) -> None:
        command = source.request
        assert isinstance(command, DefinitionCommand)
        if is_deleted:
            self.rows.append(
                DefinitionRow(kind="action", name=command.name, body=None, changed_by=command.changed_by)
            )
            self._reply(source, {"type": "deleted", "name": command.name})
        else:
            message = f"action {command.name}: {waiting} executions wait and {running} run; cancel them first"
            self._reject(source, Code.IN_USE, message)

    def register(self, hello: Hello, state: State) -> Iterator[Input]:
        """Yield the actions of a worker that the installation lacks. What exists is never changed."""
        for body in hello.definitions:
            ref = body["ref"]
            action = state.actions.get(ref)
            if (action is None or action.is_deleted) and all(row.name != ref for row in self.rows):
                row = DefinitionRow(
                    kind="action", name=ref, body=body, changed_by={"worker": hello.sender.worker_id}
                )
                self.rows.append(row)
                yield input_of(row)

    # Answers.

    def _reply(self, source: Source, body: Mapping[str, Any]) -> None:
        if source.command_id is not None:
            self.answers.append((source.command_id, body))
        if source.reply_to is not None:
            self.publications.append(
                Publication(
                    to=f"reply {source.reply_to}", body={**body, "correlation_id": source.correlation_id}
                )
            )

    def _reject(self, source: Source, code: Code, message: str) -> None:
        self._reply(source, {"type": "execution.rejected", "code": code, "message": message})
        if source.command_id is None:
            letter = {"x-error-code": code, "x-error": message, "request": source.request}
            self.publications.append(Publication(to="dead letters", body=letter))
