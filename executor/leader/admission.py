"""Requests and commands as inputs of a turn: what is a duplicate, what is too early, who is answered.

Message keys, idempotency keys and ids that are not in memory were looked up before (`ports.Store.look_up`).
So a repetition is decided, inside one batch, across turns, and after a takeover: the constraint behind it
never speaks.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import structs

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.fields import PRIORITY_DEFAULT, pointer_path
from turnstile.executor.leader.commands import Definitions
from turnstile.executor.leader.ports import (
    CancelExecutions,
    CancelRequest,
    Delivery,
    ExecutionCommand,
    InboxRow,
    Publication,
    RefusedRequest,
    Request,
)
from turnstile.executor.leader.records import EarlyCancelRow, Known, SingletonRow
from turnstile.executor.leader.singletons import Singletons
from turnstile.executor.queue_manager.decisions import Admitted, Cancelled, Decisions, Refused
from turnstile.executor.queue_manager.inputs import Admit, Cancel, Input
from turnstile.executor.queue_manager.state import State

_RECENT_MAX: Final = 50_000
EARLY_SECONDS: Final = 60.0
"""How long a cancel waits for the execution that it names."""
_EARLY_MAX: Final = 10_000

_KEY_CHARS_MAX: Final = 512
_INDEX: Final = re.compile(r"-?[0-9]+")
_EXACT: Final = json.JSONDecoder(parse_int=Decimal, parse_float=Decimal)

Keys = UUID | str | int
_WAITING: Final = (Status.QUEUED, Status.DELAYED)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request or command came from, and who wants an answer."""

    request: ExecutionCommand
    delivery_key: UUID | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    command_id: UUID | None = None
    delivery: Delivery | None = None
    """The message, as long as it is not acknowledged."""
    schedule: str | None = None
    """Its name, of an occurrence."""

    @property
    def is_submission(self) -> bool:
        """Whether it is from `turnstile.submit`: no client waits for the answer."""
        request = self.request
        is_unread = isinstance(request, RefusedRequest) and self.command_id is not None
        return is_unread or (isinstance(request, Request) and request.is_submission)


def source_of(each: Delivery | InboxRow) -> Source:
    """Return a message or a command of the inbox as a source."""
    if isinstance(each, InboxRow):
        request = each.body
        assert isinstance(request, ExecutionCommand)
        return Source(request=request, delivery_key=each.command_id, command_id=each.command_id)
    body = each.body
    assert isinstance(body, Request | CancelRequest | RefusedRequest)
    return Source(
        request=body,
        delivery_key=each.delivery_key if each.key_identifies else None,
        reply_to=each.reply_to,
        correlation_id=each.correlation_id,
        delivery=each,
    )


@dataclass(slots=True)
class _Bulk:
    """A cancel of many executions while the turn decides it."""

    source: Source
    items: dict[int, tuple[Status, Status | None]] = field(default_factory=dict)
    """By execution: the status before, and after; None: it had ended."""


def _ended(execution_id: int, status: Status) -> str:
    return f"execution {execution_id} is {status}; an ended execution never changes"


class Admission:
    """Decides requests and commands before the queue manager does. One per epoch."""

    def __init__(
        self, early: Iterable[EarlyCancelRow], singletons: Iterable[SingletonRow], state: State,
        definitions: Definitions,
    ) -> None:  # fmt: skip
        self._state = state
        self.definitions = definitions
        self.singletons = Singletons(singletons)
        self.early_rows: list[EarlyCancelRow] = []
        self.early_over: list[int] = []
        self.publications: list[Publication] = []
        self.answers: list[tuple[UUID, Mapping[str, Any]]] = []
        self.outcomes: list[tuple[UUID, Mapping[str, Any]]] = []
        """Answers to submissions, which no client waits for."""
        self.refused_occurrences: list[tuple[Source, str]] = []
        """What this turn refused of schedules, and why."""
        self._repeated_refs: list[str] = []
        self._rejected: list[tuple[Source, Code, str]] = []
        self._accepted: list[tuple[Known, dict[str, Any]]] = []
        """What this turn admitted, and the replies."""
        self._recent: OrderedDict[Keys, Known] = OrderedDict()
        self._early = {row.id: row for row in early}
        self._next_early = max(self._early, default=0) + 1
        self._pending: dict[Keys | tuple[str, str], Source] = {}
        """Requests of this turn whose ids are not known yet, by their keys, or action and singleton."""
        self._seconds: dict[int, list[Source]] = {}
        """Requests with the singleton of these."""
        self._cancelling: set[int] = set()
        """What this turn cancels."""
        self._copies: dict[int, list[Source]] = {}
        """Copies of these, by the identity of the first one."""
        self._cancels: dict[int, list[Source]] = {}
        """Cancels of these."""
        self._early_sources: dict[int, Source] = {}
        self._bulk: dict[int, _Bulk] = {}
        """Cancels of many executions that this turn decides, by the identity of their sources."""

    def has_early(self) -> bool:
        """Return whether a cancel waits for an execution that this turn may admit."""
        return bool(self._early or self._cancels)

    def show_grants(self) -> None:
        """Say in the replies what the turn has decided since: granted, ended, or which position."""
        for known, reply in self._accepted:
            live = self._live(known)
            if live is not None:
                reply["status"], reply["position"] = live
        self._accepted = []

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self.early_rows, self.early_over, self.answers, self.outcomes = [], [], [], []
        self.singletons.written()

    def take_publications(self) -> list[Publication]:
        """Return the replies and dead letters of the committed turn."""
        found, self.publications = self.publications, []
        return found

    def take_noted(self) -> tuple[list[str], list[tuple[Source, Code, str]]]:
        """Return the actions of repeated requests, and what was refused and no client of HTTP hears."""
        found = self._repeated_refs, self._rejected
        self._repeated_refs, self._rejected = [], []
        return found

    def missing(
        self, sources: Iterable[Source], previous_ids: Iterable[int] = ()
    ) -> tuple[list[UUID], list[str], list[int]]:
        """Return the message keys, idempotency keys and ids that must be looked up.

        `previous_ids` are those of which it matters whether they have ended.
        """
        keys: dict[UUID, None] = {}
        names: dict[str, None] = {}
        ids = dict.fromkeys(each for each in previous_ids if not self._is_remembered(each))
        for source in sources:
            request = source.request
            if isinstance(request, Request | CancelRequest):
                if isinstance(request, Request):
                    if source.delivery_key is not None and not self._is_remembered(source.delivery_key):
                        keys[source.delivery_key] = None
                        if (answered := self._recent.get(source.delivery_key)) is not None:
                            # It may have been answered with the execution that has its singleton.
                            ids[answered.execution_id] = None
                elif request.execution_id is not None and not self._is_remembered(request.execution_id):
                    ids[request.execution_id] = None
                if request.idempotency_key is not None and not self._is_remembered(request.idempotency_key):
                    names[request.idempotency_key] = None
            elif isinstance(request, CancelExecutions):
                # Of what has ended since, the status is not in memory.
                ids |= dict.fromkeys(request.execution_ids)
        return list(keys), list(names), list(ids)

    def _is_remembered(self, key: Keys) -> bool:
        """Return whether a key is in memory, and what is known under it is what a look-up would find."""
        known = self._recent.get(key)
        if known is None:
            return False
        return is_terminal(known.status) or self._live(known) is not None

    def living(self, execution_id: int) -> Known | None:
        """Return what is known of an execution that has not ended; its id was looked up."""
        known = self._recent.get(execution_id)
        is_living = known is not None and not is_terminal(known.status) and self._live(known) is not None
        return known if is_living else None

    def _live(self, known: Known | SingletonRow) -> tuple[Status, int | None] | None:
        """Return status and position of an execution as the state has it; None: it has ended."""
        execution = self._state.executions.get(known.execution_id)
        if execution is not None and execution.status is not Status.QUEUED:
            return execution.status, None
        queue = self._state.queue(known.action_ref, known.key)
        waiting = None if queue is None else queue.waiting.get(known.priority)
        position = None if waiting is None else waiting.position(known.execution_id)
        if queue is not None and position is not None:
            before = (len(each) for other, each in queue.waiting.items() if other < known.priority)
            return Status.QUEUED, position + sum(before)
        return None if execution is None else (execution.status, None)

    def learn(self, known: Mapping[Keys, Known]) -> None:
        """Remember what a look-up found."""
        self._recent.update(known)

    def inputs(self, source: Source, now: float) -> Iterator[Input]:
        """Yield what a request or command asks of the queue manager; duplicates are answered instead."""
        match source.request:
            case Request() as request:
                yield from self._request(source, request, now)
            case CancelRequest() as request:
                yield from self._cancel(source, request, now)
            case CancelExecutions() as request:
                yield from self._cancel_all(source, request)
            case RefusedRequest() as invalid:
                self._reject(source, invalid.code, invalid.message)

    # Requests.

    def _request(self, source: Source, request: Request, now: float) -> Iterator[Input]:
        keys: list[Keys] = [key for key in (source.delivery_key, request.idempotency_key) if key is not None]
        for key in keys:
            if (known := self._recent.get(key)) is not None:
                self._repeated(source, request, known)
                return
            if (first := self._pending.get(key)) is not None:
                # Decided in this turn: its id is known after the decision.
                self._copies.setdefault(id(first), []).append(source)
                return
        if request.refusal is not None:
            self._reject(source, *request.refusal)
            return
        if self.definitions.is_deleting(request.action_ref):
            self._reject(source, Code.UNKNOWN_ACTION, _unknown_action(request.action_ref))
            return
        definition = self.definitions.action(request.action_ref)
        try:
            full = completed(request, definition)
        except Refusal as refusal:
            self._reject(source, refusal.code, refusal.message)
            return
        if full.delay_seconds is not None:
            full = structs.replace(full, run_at=now + full.delay_seconds, delay_seconds=None)
        source = structs.replace(source, request=full)
        if full.singleton is not None:
            replaced = self._replaced(source, full)
            if replaced is None:
                return
            yield from replaced
        for key in keys:
            self._pending[key] = source
        assert full.priority is not None
        yield Admit(
            action_ref=full.action_ref, key=full.key, priority=full.priority, run_at=full.run_at,
            ttl_seconds=request.ttl_seconds, timeout_seconds=request.timeout_seconds, source=source,
        )  # fmt: skip

    def _replaced(self, source: Source, request: Request) -> Sequence[Cancel] | None:
        """Return the cancels of what a request replaces; None: it is answered with what has its name."""
        rule = request.singleton
        assert rule is not None
        name = request.action_ref, rule.key
        first, self._pending[name] = self._pending.get(name), source
        if first is not None and rule.then != "cancel_running":
            # Decided in this turn: its id is known after the decision.
            self._pending[name] = first
            self._seconds.setdefault(id(first), []).append(source)
            return None
        if first is not None:
            reason = CancelRequest(execution_id=None, idempotency_key=None, reason=_replaced_by(rule.key))
            self._cancels.setdefault(id(first), []).append(Source(request=reason))
        found = [each for each in self.singletons.living(*name) if self._counts(each, rule.when)]
        if not found:
            return ()
        if rule.then == "cancel_running":
            return [self.cancel_of(each, _replaced_by(rule.key), None) for each in found]
        del self._pending[name]
        self._exists(source, request, found[0])
        return None

    def _counts(self, row: SingletonRow, when: str) -> bool:
        live = self._live(row)
        if live is None:
            return False
        if live[0] in _WAITING:
            return row.execution_id not in self._cancelling
        return when == "waiting_or_running"

    def _exists(self, source: Source, request: Request, existing: Known | SingletonRow) -> None:
        """Answer a request whose singleton another execution has."""
        assert request.singleton is not None
        execution_id = existing.execution_id
        status, position = self._live(existing) or (Status.QUEUED, None)
        if request.singleton.then == "refuse":
            self._reject(source, Code.SINGLETON_EXISTS, (
                f"singleton: {request.singleton.key!r} names execution {execution_id}, which is {status};"
                " submit again after its end, cancel it, or submit with then: return_existing"
            ))  # fmt: skip
            return
        known = Known(
            execution_id=execution_id, request_hash=request.request_hash, status=status,
            action_ref=existing.action_ref, key=existing.key, priority=existing.priority,
        )  # fmt: skip
        if source.delivery_key is not None:
            self._recent[source.delivery_key] = known
        self._accept(source, known, position, is_duplicate=True)

    def _accept(
        self, source: Source, known: Known, position: int | None, *, is_duplicate: bool
    ) -> dict[str, Any]:
        reply = {
            "type": "execution.accepted", "execution_id": known.execution_id, "status": known.status,
            "position": position, "duplicate": is_duplicate,
        }  # fmt: skip
        self._reply(source, reply)
        return reply

    def _repeated(self, source: Source, request: Request, known: Known) -> None:
        if known.request_hash != request.request_hash:
            message = (
                f"idempotency_key: {request.idempotency_key!r} already names execution {known.execution_id}, "
                "which is a different request; use another key, or repeat the same request"
            )
            self._reject(source, Code.IDEMPOTENCY_CONFLICT, message)
            return
        newest = self._recent.get(known.execution_id, known)
        status, position = self._live(known) or (newest.status, None)
        self._repeated_refs.append(request.action_ref)
        self._accept(source, structs.replace(known, status=status), position, is_duplicate=True)

    def decided(self, out: Decisions) -> Iterator[Input]:
        """Answer what was decided, and yield the cancels that came before their executions."""
        for admitted in out.admitted:
            yield from self._admitted(admitted)
        for refused in out.refused:
            self._refused(refused)
        for cancelled in out.cancelled:
            self._cancelled(cancelled)
        self._answer_bulk(out)
        self.singletons.end(each.id for each in out.finished)
        self._cancelling.clear()
        self._pending.clear()
        self._copies.clear()
        self._seconds.clear()
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
        if request.retry_of is not None:
            self.definitions.log.retried(
                request.retry_of, request.action_ref, each.id, request.edited, request.changed_by
            )
        # A submission finds its execution by the id of its request.
        is_asked = source.command_id is not None or source.reply_to is not None
        if is_asked and not request.is_submission:
            self._accepted.append((known, self._accept(source, known, each.position, is_duplicate=False)))
        if request.singleton is not None:
            self.singletons.admit(SingletonRow(
                execution_id=each.id, action_ref=request.action_ref, singleton=request.singleton.key,
                key=each.queue.key, priority=each.priority,
            ))  # fmt: skip
            for second in self._seconds.get(id(source), ()):
                assert isinstance(second.request, Request)
                self._exists(second, second.request, known)
        for copy in self._copies.get(id(source), ()):
            assert isinstance(copy.request, Request)
            self._repeated(copy, copy.request, known)
        for cancel in self._cancels.get(id(source), ()):
            assert isinstance(cancel.request, CancelRequest)
            yield self.cancel_of(known, cancel.request.reason, cancel)
        if self._early:
            yield from self._early_cancels(known, request.idempotency_key)

    def _refused(self, each: Refused) -> None:
        message = each.message
        if each.code is Code.UNKNOWN_ACTION:
            message = _unknown_action(each.message)
        self._reject(each.source, each.code, message)
        for cancel in self._cancels.get(id(each.source), ()):
            self._reject(cancel, Code.UNKNOWN_EXECUTION, "its request was refused")
        for copy in (*self._copies.get(id(each.source), ()), *self._seconds.get(id(each.source), ())):
            self._reject(copy, each.code, message)

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
            self._reject(source, Code.ALREADY_TERMINAL, _ended(known.execution_id, known.status))
        else:
            yield self.cancel_of(known, request.reason, source)

    def _cancel_all(self, source: Source, request: CancelExecutions) -> Iterator[Input]:
        """Cancel in this order; all of it is decided in this turn, and answered as one."""
        bulk = self._bulk[id(source)] = _Bulk(source)
        reason = request.reason or ""
        for execution_id in dict.fromkeys(request.execution_ids):
            known = self._recent.get(execution_id)
            if known is None:
                continue
            live = None if is_terminal(known.status) else self._live(known)
            bulk.items[execution_id] = known.status if live is None else live[0], None
            if not is_terminal(known.status):
                yield self.cancel_of(known, reason, source)

    def _answer_bulk(self, out: Decisions) -> None:
        if not self._bulk:
            return
        ended = {each.id: each.status for each in out.finished}
        for bulk in self._bulk.values():
            command = bulk.source.request
            assert isinstance(command, CancelExecutions)
            items = []
            for execution_id, (before, after) in bulk.items.items():
                # Without an answer it had ended: before this turn, or by its worker's report in it.
                status = after or ended.get(execution_id, before)
                previous = before if after is not None else status
                items.append((execution_id, previous, status))
                if after is not None and command.changed_by is not None:
                    ref = self._recent[execution_id].action_ref
                    self.definitions.log.cancelled(
                        execution_id, ref, (previous, status), command.reason, command.changed_by
                    )
            self._reply(bulk.source, {"type": "execution.cancels", "items": items})
        self._bulk.clear()

    def cancel_of(self, known: Known | SingletonRow, reason: str, source: Source | None = None) -> Cancel:
        """Return what cancels a living execution."""
        self._cancelling.add(known.execution_id)
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
            reason=request.reason, kept_until=now + EARLY_SECONDS, properties=request.properties,
        )  # fmt: skip
        self._next_early += 1
        self._early[row.id] = row
        self.early_rows.append(row)
        self._early_sources[row.id] = structs.replace(source, delivery=None)

    def _early_cancels(self, known: Known, idempotency_key: str | None) -> Iterator[Input]:
        for row in list(self._early.values()):
            if row.execution_id == known.execution_id or (
                idempotency_key is not None and row.idempotency_key == idempotency_key
            ):
                self._forget_early(row.id)
                yield self.cancel_of(known, row.reason)

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
                    execution_id=row.execution_id,
                    idempotency_key=row.idempotency_key,
                    reason=row.reason,
                    properties=row.properties,
                )
            )
            self._forget_early(row.id)
            name = row.idempotency_key if row.execution_id is None else row.execution_id
            self._reject(source, Code.UNKNOWN_EXECUTION, f"no execution {name} within {EARLY_SECONDS:g} s")

    def _cancelled(self, each: Cancelled) -> None:
        known = self._recent.get(each.cancel.execution_id)
        if each.status is Status.CANCELLED and known is not None:
            self._recent[each.cancel.execution_id] = structs.replace(known, status=Status.CANCELLED)
        bulk = self._bulk.get(id(each.cancel.source))
        if each.cancel.source is None:
            return
        if bulk is not None:
            before, _ = bulk.items[each.cancel.execution_id]
            bulk.items[each.cancel.execution_id] = before, None if each.had_ended else each.status
        elif each.had_ended:
            message = f"execution {each.cancel.execution_id} has ended"
            self._reject(each.cancel.source, Code.ALREADY_TERMINAL, message)
        else:
            self._reply(each.cancel.source, {
                "type": "execution.cancel_accepted", "execution_id": each.cancel.execution_id,
                "status": each.status,
            })  # fmt: skip

    # Answers.

    def _reply(self, source: Source, body: dict[str, Any]) -> None:
        if source.command_id is not None:
            (self.outcomes if source.is_submission else self.answers).append((source.command_id, body))
        if source.reply_to is not None:
            body["correlation_id"] = source.correlation_id
            self.publications.append(
                Publication(to=f"reply {source.reply_to}", body=body, of=source.delivery)
            )

    def _reject(self, source: Source, code: Code, message: str) -> None:
        self._reply(source, {"type": "execution.rejected", "code": code, "message": message})
        if source.schedule is not None:
            self.refused_occurrences.append((source, message))
            return
        if source.command_id is not None and not source.is_submission:
            return
        self._rejected.append((source, code, message))
        # Stored is only what has no answer. The cancel of what has ended asks for nothing, as the second copy
        # of an effective one.
        if source.reply_to is None and code is not Code.ALREADY_TERMINAL:
            letter = {"x-error-code": code, "x-error": message, "request": source.request}
            if source.command_id is not None:
                letter["message_id"] = str(source.command_id)
            self.publications.append(Publication(to="dead letters", body=letter, of=source.delivery))


def _replaced_by(singleton: str) -> str:
    return f"replaced by a newer request with the singleton {singleton!r}"


def _unknown_action(ref: str) -> str:
    remedy = "start a worker that has it, or define it: executor actions apply FILE"
    return f"action_ref: no action {ref!r}; {remedy}"


def completed(request: Request, definition: Mapping[str, Any]) -> Request:
    """Return the request with its key, priority and webhook. Raises Refusal."""
    changes: dict[str, Any] = {}
    priority_min = definition.get("priority_min", 1)
    if request.priority is None:
        changes["priority"] = max(PRIORITY_DEFAULT, priority_min)
    elif request.priority < priority_min and not (request.may_be_urgent or request.repeats_accepted):
        raise _unfit(
            f"priority: {request.priority} is below the priority_min of the action, {priority_min}; send"
            f" {priority_min} or more, leave it out, or use a token with the role operate"
        )
    pointer = definition.get("concurrency_key")
    if request.edited is not None:
        # Other parameters may have another key. Without a pointer it is that of the ended execution.
        has_key = pointer is None
    else:
        has_key = bool(request.key) or request.retry_of is not None
    if not has_key and (pointer or request.concurrency_key is not None):
        changes["key"] = _key(request, pointer, has_free_keys=definition.get("submitter_keys", False))
    if request.callback_url is None and (url := definition.get("callback_url")) is not None:
        changes["callback_url"] = url
    return structs.replace(request, **changes) if changes else request


def _key(request: Request, pointer: str | None, *, has_free_keys: bool) -> str:
    given = request.concurrency_key
    if given is not None and has_free_keys:
        return given
    if pointer is None:
        raise _unfit(
            "concurrency_key: the action has no keys; leave it out, or set submitter_keys in the action"
        )
    key = _text_at(request.parameters, pointer)
    if given is not None and key != given:
        raise _unfit(
            f"concurrency_key: is not the value at {pointer} in the parameters; leave it out, or set"
            " submitter_keys in the action"
        )
    if key is None:
        raise _unfit(f"parameters: no value at concurrency key {pointer}")
    if len(key) > _KEY_CHARS_MAX:
        raise _unfit(f"parameters: concurrency key longer than {_KEY_CHARS_MAX} characters")
    return key


def _unfit(message: str) -> Refusal:
    return Refusal(Code.INVALID_PARAMETERS, message)


def _text_at(parameters: bytes, pointer: str) -> str | None:
    """Return the value at a JSON Pointer as PostgreSQL's `#>>` does; None: there is none, or it is null."""
    found: Any = _EXACT.decode(parameters.decode())
    for step in pointer_path(pointer):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and _INDEX.fullmatch(step) and -len(found) <= int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    if found is None or isinstance(found, str):
        return found
    return _written(found)


def _written(value: Any) -> str:
    match value:
        case bool() | None:
            return json.dumps(value)
        case Decimal():
            return format(value or abs(value), "f")
        case dict():
            members = sorted(value.items(), key=lambda each: (len(each[0].encode()), each[0].encode()))
            return "{" + ", ".join(f"{_written(name)}: {_written(each)}" for name, each in members) + "}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
