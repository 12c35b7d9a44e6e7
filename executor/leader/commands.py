"""Changes of definitions by operators: what each changes, what it is refused for, its answer.

In: commands in their order, and the state. Out: inputs of the queue manager, rows of the turn with the audit
log, and answers. Fields were checked at the door; here only what depends on the other definitions and on the
state. A patch is merged here, so patches of different fields all take effect. Nothing is undone: after a turn
that was not written, all of it is loaded again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from pydantic import BaseModel

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status
from turnstile.common.fields import is_pool
from turnstile.common.requests import read_model
from turnstile.common.schedules import ScheduleDefinition
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.leader.audit_log import NAMED, AuditLog
from turnstile.executor.leader.door import definition_tag
from turnstile.executor.leader.ports import DefinitionCommand, InboxRow
from turnstile.executor.leader.records import DefinitionRow
from turnstile.executor.queue_manager.decisions import Decisions, Finished
from turnstile.executor.queue_manager.definitions import (
    UNBOUNDED,
    Action,
    KeySettings,
    Pool,
    Rate,
    Resource,
    Use,
)
from turnstile.executor.queue_manager.inputs import (
    Cancel,
    DefineAction,
    DefinePool,
    DefineResource,
    DeleteAction,
    DeletePool,
    DeleteResource,
    Input,
    SetKey,
)
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.queue_manager.state import ActionState, State

Body: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Mapping[str, Any]
Decided: TypeAlias = tuple[Sequence[Input], Answer]

_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "action": ActionDefinition,
    "resource": ResourceDefinition,
    "pool": PoolDefinition,
    "schedule": ScheduleDefinition,
}
_MERGED: Final = ("retry", "weights")
_SHOWN_MAX: Final = 10
_DELETED_REASON: Final = "its action was deleted"
WORKER: Final = {"name": "worker", "channel": "worker"}
"""The author of what workers register."""
_DELETED_MAX: Final = 500
"""How many executions one turn cancels with their action; later turns go on with the same command."""
_SECONDS: Final = {
    "timeout": "timeout_seconds",
    "ttl": "ttl_seconds",
    "delay": "delay_seconds",
    "max_delay": "max_delay_seconds",
    "per": "per_seconds",
}
_UNKNOWN: Final = {
    "action": "ref: there is no action {!r}; start a worker that has it, or define it: "
    "executor actions apply FILE",
    "resource": "name: there is no resource {!r}; GET /resources lists them, and PUT creates one",
    "pool": "name: there is no pool {!r}; GET /pools lists them, and PUT creates one",
    "schedule": "name: there is no schedule {!r}; GET /schedules lists them, and PUT creates one",
    "worker": "worker_id: there is no live worker {!r}",
}


class InUse(Refusal):
    """What is to be deleted is needed: `counts` says by what."""

    def __init__(self, message: str, counts: Mapping[str, Any]) -> None:
        super().__init__(Code.IN_USE, message)
        self.counts = counts


def undivided(commands: Sequence[InboxRow]) -> Sequence[InboxRow]:
    """Return the commands of one turn: none after the deletion of an action, whose outcome they depend on."""
    for index, each in enumerate(commands):
        body = each.body
        if isinstance(body, DefinitionCommand) and body.kind == "action" and body.definition is None:
            return commands[: index + 1]
    return commands


class Definitions:
    """All definitions, as they are after what was decided in this turn too."""

    def __init__(
        self, rows: Iterable[DefinitionRow] = (), action_ids: Mapping[str, int] | None = None
    ) -> None:
        self.bodies: dict[tuple[str, str], Body] = {
            (row.kind, row.name): row.body for row in rows if row.body is not None
        }
        self.action_ids = dict(action_ids or {})
        """Also of deleted actions."""
        self.rows: list[DefinitionRow] = []
        """What this turn writes."""
        self.new_action_ids: list[tuple[str, int]] = []
        self._schedules: list[tuple[str, Body | None]] = []
        """Schedules that this turn has changed; None: it has deleted them."""
        self.log = AuditLog()
        self.answers: list[tuple[UUID, Answer]] = []
        """To the commands that this turn decided."""
        self.begun: list[tuple[UUID, int]] = []
        """Deletions that this turn goes on with, and how many executions they have cancelled by now."""
        self.unfinished: set[UUID] = set()
        """Commands that are not decided yet: they stay in the inbox, and the next turn goes on with them."""
        self._deletions: dict[str, InboxRow] = {}
        """Commands of several turns, by action. Nothing of it starts, and nothing is admitted. A load forgets
        them: the commands are still in the inbox."""
        self._delayed: frozenset[int] = frozenset()
        """Of the action that this turn may delete."""
        self._has_deleted = True
        """An action was deleted since `unused_pools`, or before the load."""

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self.rows, self.new_action_ids, self.log.rows = [], [], []
        self.answers, self.begun, self.unfinished = [], [], set()

    def action(self, ref: str) -> Body:
        """Return the definition of an action; empty if it has none."""
        return self.bodies.get(("action", ref), {})

    def of_kind(self, kind: str) -> Mapping[str, Body]:
        """Return all definitions of a kind by name."""
        return {name: body for (of, name), body in self.bodies.items() if of == kind}

    def take_schedules(self) -> list[tuple[str, Body | None]]:
        """Return the schedules that this turn has changed; None: it has deleted them."""
        taken, self._schedules = self._schedules, []
        return taken

    def is_deleting(self, ref: str) -> bool:
        """Return whether an action is being deleted, which takes several turns."""
        return ref in self._deletions

    # What operators ask for.

    def inputs(self, row: InboxRow, command: DefinitionCommand, state: State) -> Iterable[Input]:
        """Return what a change asks of the queue manager; a refused one is answered instead."""
        try:
            if command.kind == "action" and command.definition is None:
                self._check_deletion(command, state)
                return list(self._delete(row, command, state))
            inputs, answer = self.change(command, state)
        except Refusal as refusal:
            self._refuse(row.command_id, refusal)
            return ()
        self.answers.append((row.command_id, answer))
        return inputs

    def drained(self, row: InboxRow, command: DefinitionCommand, *, was_draining: bool | None) -> None:
        """Answer that a worker takes nothing new, or something again; None: no such worker lives."""
        if was_draining is None:
            self._refuse(row.command_id, unknown("worker", command.name))
            return
        is_draining = bool((command.definition or {}).get("is_draining"))
        if is_draining and not was_draining:
            self.log.drained(command.name, command.changed_by)
        answer = {"type": "drained", "name": command.name, "is_draining": is_draining}
        self.answers.append((row.command_id, answer))

    def spared(self, row: InboxRow, seconds: float) -> None:
        """Answer for how long nothing of a worker is reclaimed, whatever happens."""
        self.answers.append((row.command_id, {"type": "spared", "seconds": seconds}))

    def _refuse(self, command_id: UUID, refusal: Refusal) -> None:
        counts = refusal.counts if isinstance(refusal, InUse) else {}
        answer = {"type": "execution.rejected", "code": refusal.code, "message": refusal.message, **counts}
        self.answers.append((command_id, answer))

    def change(self, command: DefinitionCommand, state: State) -> Decided:
        """Apply a command that is no deletion of an action. Raises Refusal."""
        if command.kind == "key":
            return self._change_key(command)
        if command.definition is None:
            is_schedule = command.kind == "schedule"
            return self._delete_schedule(command) if is_schedule else self._delete_resource(command, state)
        stored = self.bodies.get((command.kind, command.name))
        if stored is None and command.is_patch:
            raise unknown(command.kind, command.name)
        _check_conditions(command, stored)
        body = _merged(command, stored) if command.is_patch else command.definition
        self._check(command, body, stored or {})
        # A patch with the defaults sets nothing; a PUT does.
        # A schedule is stored without the defaults in any case.
        was_named = command.is_patch and command.kind == "pool"
        known = with_defaults("pool", stored) if was_named else stored
        answer = {"type": "defined", "name": command.name, "is_changed": body != known}
        if body == known:
            return (), answer
        row = self.store(command.kind, command.name, body, command.changed_by)
        return [] if command.kind == "schedule" else [input_of(row)], answer

    # Deletions of actions.

    def _check_deletion(self, command: DefinitionCommand, state: State) -> None:
        """Raise Refusal if an action that is to be deleted is unknown, or not in the expected state."""
        stored = self.bodies.get(("action", command.name))
        if stored is None and command.name not in state.actions:
            raise unknown("action", command.name)
        _check_conditions(command, stored)
        of_action = (n for n, body in self.of_kind("schedule").items() if body["action_ref"] == command.name)
        if schedules := sorted(of_action):
            named = ", ".join(schedules[:_SHOWN_MAX])
            message = f"ref: {command.name!r} has schedules: {named}; delete them first"
            raise InUse(message, {"schedules": schedules[:_SHOWN_MAX]})
        self._delayed = frozenset(
            each.id
            for each in state.executions.values()
            if each.queue.action.ref == command.name and each.status is Status.DELAYED
        )

    def _delete(self, row: InboxRow, command: DefinitionCommand, state: State) -> Iterator[Input]:
        """Delete an action; of what waits, only so many are cancelled in one turn."""
        ref, action = command.name, state.actions.get(command.name)
        waiting = at_workers = 0
        if action is not None:
            queues = action.queues.values()
            waiting = sum(queue.length + queue.holding + queue.delayed for queue in queues)
            # Also in runs: any of them may have started.
            at_workers = action.held - len(action.holding)
        if action is None or at_workers or not _DELETED_MAX < waiting <= command.cancel_max:
            yield DeleteAction(ref=ref, reason=_DELETED_REASON, cancel_max=command.cancel_max, source=row)
            return
        is_first, self._deletions[ref] = ref not in self._deletions, row
        if is_first:
            # In memory only: the definition is the stored one until the last turn deletes it.
            yield DefineAction(action=replace(action.definition, paused=True))
        self.unfinished.add(row.command_id)
        yield from islice(_cancels_of(state, action), _DELETED_MAX)

    def decided(self, out: Decisions) -> None:
        """Answer the deletions that were decided, and note how far the others are."""
        for is_deleted, waiting, running, row in out.deleted:
            if is_deleted:
                self._deletions.pop(row.body.name, None)
                self._deleted(row, _cancelled_with(row.body.name, out), waiting)
            else:
                self._refuse(row.command_id, _in_use(row.body, waiting, running))
        for ref, row in self._deletions.items():
            if ended := _cancelled_with(ref, out):
                self.begun.append((row.command_id, row.cancelled + len(ended)))
                self._log_cancelled(row, ended)

    def _deleted(self, row: InboxRow, ended: Sequence[Finished], waiting: int) -> None:
        command = row.body
        assert isinstance(command, DefinitionCommand)
        self._has_deleted = True
        ref = command.name
        keys = [name for kind, name in self.bodies if kind == "key" and name.startswith(f"{ref}/")]
        code = [("code", ref)] if ("code", ref) in self.bodies else []
        for kind, name in (*(("key", name) for name in keys), *code, ("action", ref)):
            body = self.bodies.pop((kind, name), None)
            self.rows.append(_row(kind, name, None, command.changed_by))
            if kind == "action":
                self.log.changed("action", ref, body or {}, {}, command.changed_by)
        self._log_cancelled(row, ended)
        answer = {"type": "deleted", "name": ref, "cancelled": waiting + row.cancelled}
        self.answers.append((row.command_id, answer))

    def _log_cancelled(self, row: InboxRow, ended: Sequence[Finished]) -> None:
        """Record that these were cancelled with an action that is deleted."""
        command = row.body
        assert isinstance(command, DefinitionCommand)
        for each in ended:
            moved = Status.DELAYED if each.id in self._delayed else Status.QUEUED, each.status
            self.log.cancelled(each.id, command.name, moved, _DELETED_REASON, command.changed_by)

    # What workers bring, too.

    def store_code(self, ref: str, body: Body) -> None:
        """Store the schemas that workers derived from the code of an action."""
        self.bodies["code", ref] = body
        self.rows.append(_row("code", ref, body, WORKER))

    def name_pool(self, name: str) -> DefinitionRow | None:
        """Store a pool without settings: it exists as long as an action or a live worker names it."""
        if ("pool", name) in self.bodies or not is_pool(name):
            return None
        body = self.bodies["pool", name] = {"name": name}
        self.rows.append(row := _row("pool", name, body, None))
        return row

    def unused_pools(self, served: Iterable[str], *, has_changed: bool) -> Iterator[Input]:
        """Delete the pools without settings that no action names any more.

        `served`: the pools of live workers, which stay; `has_changed`: whether a worker joined or is gone.
        """
        if not (has_changed or self._has_deleted or self.rows):
            return
        self._has_deleted = False
        named = {*served, *(body.get("pool", "default") for _, body in self._actions())}
        unset = {n for (kind, n), body in self.bodies.items() if kind == "pool" and body == {"name": n}}
        for name in sorted(unset - named):
            del self.bodies["pool", name]
            self.rows.append(_row("pool", name, None, None))
            yield DeletePool(name=name)

    # Keys and resources.

    def _change_key(self, command: DefinitionCommand) -> Decided:
        body, name = command.definition, command.name
        ref, _, key = name.partition("/")
        stored = self.bodies.get(("key", name))
        action = self.bodies.get(("action", ref))
        if action is None:
            raise unknown("action", ref)
        if body is None and stored is None:
            raise without_settings(ref, key)
        if body is not None and action.get("concurrency_key") is None and not action.get("submitter_keys"):
            raise Refusal(
                Code.INVALID_MESSAGE,
                f"key: the action '{ref}' has no concurrency keys; set its concurrency_key or submitter_keys"
                " first, or change the limit of the action",
            )
        answer = {"type": "defined", "name": name, "is_changed": body != stored}
        if body == stored:
            return (), answer
        row = _row("key", name, body, command.changed_by)
        self.rows.append(row)
        if body is None:
            del self.bodies["key", name]
        else:
            self.bodies["key", name] = body
        self.log.key_changed(ref, key, stored, body, command.changed_by)
        if body is None:
            return [SetKey(action_ref=ref, key=key, settings=None)], answer
        return [input_of(row)], answer

    def _delete_resource(self, command: DefinitionCommand, state: State) -> Decided:
        name = command.name
        stored = self.bodies.get(("resource", name))
        if command.kind != "resource" or stored is None:
            raise unknown(command.kind, name)
        _check_conditions(command, stored)
        users = sorted(
            ref for ref, body in self._actions() if any(u["resource"] == name for u in _uses(body))
        )
        gate = state.resources.get(name)
        held = 0 if gate is None else gate.held
        waiting = sum(_waiting(state, ref) for ref in users)
        if users or held:
            # Nothing acquires or waits for what no action uses, so the counts of now can only fall.
            counts = {"used_by": users[:_SHOWN_MAX], "held": held, "waiting": waiting}
            raise InUse(_needed(name, users, held, waiting), counts)
        del self.bodies["resource", name]
        self.rows.append(_row("resource", name, None, command.changed_by))
        self.log.changed("resource", name, stored, {}, command.changed_by)
        return [DeleteResource(name=name)], {"type": "deleted", "name": name}

    def _delete_schedule(self, command: DefinitionCommand) -> Decided:
        name = command.name
        stored = self.bodies.get(("schedule", name))
        if stored is None:
            raise unknown("schedule", name)
        _check_conditions(command, stored)
        del self.bodies["schedule", name]
        self._schedules.append((name, None))
        self.rows.append(_row("schedule", name, None, command.changed_by))
        self.log.changed("schedule", name, with_defaults("schedule", stored) or {}, {}, command.changed_by)
        return [], {"type": "deleted", "name": name}

    # Parts.

    def _actions(self) -> Iterator[tuple[str, Body]]:
        return ((name, body) for (kind, name), body in self.bodies.items() if kind == "action")

    def store(self, kind: str, name: str, body: Body, changed_by: Body | None) -> DefinitionRow:
        """Store a definition that was checked, record the change, and return its row."""
        stored = self.bodies.get((kind, name), {})
        self.bodies[kind, name] = body
        row = _row(kind, name, body, changed_by)
        self.rows.append(row)
        if kind == "action":
            self.name_pool(body.get("pool", "default"))
        if kind == "schedule":
            self._schedules.append((name, body))
        if kind == "action" and name not in self.action_ids:
            new_id = self.action_ids[name] = max(self.action_ids.values(), default=0) + 1
            self.new_action_ids.append((name, new_id))
        before, after = with_defaults(kind, stored) or {}, with_defaults(kind, body) or {}
        self.log.changed(kind, name, before, after, changed_by)
        return row

    def _check(self, command: DefinitionCommand, body: Body, stored: Body) -> None:
        if command.kind == "action":
            self.check_uses(command.name, body, stored)
        elif command.kind == "schedule":
            self.check_schedule(body)
        elif command.kind == "resource" and body.get("rank") != stored.get("rank"):
            changed = {**self.bodies, ("resource", command.name): body}
            for ref, action in self._actions():
                uses = _uses(action)
                if any(use["resource"] == command.name for use in uses):
                    problem = _same_rank(uses, changed)
                    if problem is not None:
                        what = f"resource '{command.name}': rank: the action '{ref}' uses both: {problem}"
                        raise Refusal(Code.INVALID_MESSAGE, what)

    def check_schedule(self, body: Body) -> None:
        """Refuse a schedule of an action that does not exist."""
        if ("action", ref := body["action_ref"]) not in self.bodies:
            raise Refusal(Code.UNKNOWN_ACTION, f"action_{unknown('action', ref).message}")

    def check_uses(self, ref: str, body: Body, stored: Body) -> None:
        """Refuse uses that no resources fit; what was accepted before stays."""
        uses, known = _uses(body), _uses(stored)
        if uses == known:
            return
        problem: str | None = None
        for use in sorted((use for use in uses if use not in known), key=lambda use: str(use["resource"])):
            name, units = use["resource"], use.get("units", 1)
            resource = self.bodies.get(("resource", name))
            capacity = None if resource is None else resource.get("capacity")
            if resource is None:
                problem = (
                    f"there is no resource '{name}'; create it: executor resources put {name} --capacity "
                    "NUMBER, or name it under resources: in the file that you apply"
                )
                break
            if capacity is not None and units > capacity:
                problem = (
                    f"{units} units are more than the capacity {capacity} of '{name}'; take fewer, or raise "
                    f"it: executor resources put {name} --capacity {units}"
                )
                break
        problem = problem or _same_rank(uses, self.bodies)
        if problem is not None:
            raise Refusal(Code.INVALID_MESSAGE, f"action '{ref}': uses: {problem}")


def _in_use(command: DefinitionCommand, waiting: int, running: int) -> InUse:
    """Return why an action is not deleted."""
    ref = command.name
    bulk = f'POST /api/v1/executions/cancel with {{"filter": {{"action_ref": "{ref}"}}}}'
    if running:
        message = (
            f"ref: {running} executions of {ref!r} are at workers and {waiting} wait; wait until they have "
            f"ended, or cancel them: {bulk}"
        )
    elif command.cancel_max:
        message = (
            f"waiting: {waiting} executions of {ref!r} wait, at most {command.cancel_max} are cancelled with "
            f"their action; cancel them first: {bulk}"
        )
    else:
        message = (
            f"waiting: {waiting} executions of {ref!r} wait; send ?waiting=cancel to cancel them, or wait "
            "until they have run"
        )
    return InUse(message, {"waiting": waiting, "running": running})


def _cancelled_with(ref: str, out: Decisions) -> list[Finished]:
    """Return what was cancelled because its action is deleted."""
    why = "Cancelled", _DELETED_REASON
    return [each for each in out.finished if each.queue.action.ref == ref and each.error == why]


def _cancels_of(state: State, action: ActionState) -> Iterator[Cancel]:
    """Yield a cancel of each execution of an action that waits or is delayed."""
    for key, queue in action.queues.items():
        for priority, waiting in queue.waiting.items():
            for execution_id in waiting:
                yield Cancel(
                    execution_id=execution_id, reason=_DELETED_REASON, action_ref=action.ref, key=key,
                    priority=priority,
                )  # fmt: skip
    for each in state.executions.values():
        if each.queue.action is action and each.status is Status.DELAYED:
            yield Cancel(
                execution_id=each.id, reason=_DELETED_REASON, action_ref=action.ref, key=each.queue.key,
                priority=each.priority,
            )  # fmt: skip


def unknown(kind: str, name: str) -> Refusal:
    """Refuse a command about something that does not exist."""
    return Refusal(Code.NOT_FOUND, _UNKNOWN[kind].format(name[:200]))


def without_settings(ref: str, key: str) -> Refusal:
    """Refuse a command about a key that has no settings of its own."""
    return Refusal(
        Code.NOT_FOUND,
        f"key: {key[:200]!r} of {ref!r} has no settings of its own, the limit of the action holds; "
        "PUT it to give it a limit or weight",
    )


def _row(kind: str, name: str, body: Body | None, changed_by: Body | None) -> DefinitionRow:
    return DefinitionRow(kind=kind, name=name, body=body, changed_by=changed_by)  # type: ignore[arg-type]


def with_defaults(kind: str, body: Body | None) -> Body | None:
    """Return a definition with all fields: a schedule is stored without, as a pool that was only named."""
    return _MODELS[kind](**body).model_dump(mode="json") if kind in ("pool", "schedule") and body else body


def body_of(definition: BaseModel) -> Body:
    """Return a checked definition as it is stored."""
    if isinstance(definition, ScheduleDefinition):
        return definition.stored()
    return definition.model_dump(mode="json")


def _uses(body: Body) -> Sequence[Body]:
    uses: Sequence[Body] = body.get("uses") or ()
    return uses


def _merged(command: DefinitionCommand, stored: Body | None) -> Body:
    """Return the stored definition with the given fields, checked as a whole. Raises Refusal."""
    assert stored is not None
    given = command.definition or {}
    merged = {**stored, **given, NAMED[command.kind]: command.name}
    for field in _MERGED:
        if isinstance(part := given.get(field), Mapping) and field in stored:
            merged[field] = {**stored[field], **part}
    return body_of(read_model(_MODELS[command.kind], merged))


def _same_rank(uses: Sequence[Body], bodies: Mapping[tuple[str, str], Body]) -> str | None:
    by_rank: dict[int, list[str]] = {}
    for use in uses:
        rank = bodies.get(("resource", use["resource"]), {}).get("rank")
        if rank is not None:
            by_rank.setdefault(rank, []).append(use["resource"])
    for rank, names in sorted(by_rank.items()):
        if len(names) > 1:
            first, last = min(names), max(names)
            return (
                f"the resources '{first}' and '{last}' have the same rank {rank}; give one of them another "
                f"rank: executor resources put {last} --rank NUMBER"
            )
    return None


def _needed(name: str, users: Sequence[str], held: int, waiting: int) -> str:
    if users:
        more = len(users) - _SHOWN_MAX
        named = ", ".join(users[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        return f"name: {name!r} is used by {named}; remove it from the uses of these actions first"
    return (
        f"name: executions hold {held} units of {name!r} and {waiting} wait for it; wait until they have "
        "ended, or cancel them"
    )


def _waiting(state: State, ref: str) -> int:
    action = state.actions.get(ref)
    return 0 if action is None else sum(queue.length for queue in action.queues.values())


def _check_conditions(command: DefinitionCommand, stored: Body | None) -> None:
    """Raise Refusal unless what is stored is in the state that the headers name (RFC 9110, section 13)."""
    tag = None if stored is None else definition_tag(stored)
    if command.if_match is not None:
        if tag is None:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"header If-Match: the {command.kind} does not exist; omit the header",
            )
        tags = _tags(command.if_match)
        if "*" not in tags and tag not in tags:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"header If-Match: the {command.kind} was changed since then, its ETag is {tag}; "
                "read it again, then repeat the change",
            )
    if command.if_none_match is not None and tag is not None:
        tags = {each.removeprefix("W/") for each in _tags(command.if_none_match)}
        if "*" in tags or tag in tags:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"header If-None-Match: the {command.kind} exists; omit the header to replace it",
            )


def _tags(header: str) -> set[str]:
    return {tag.strip() for tag in header.split(",")}


# Stored definitions as the queue manager reads them.


def input_of(row: DefinitionRow) -> Input:
    """Return a stored definition as the input that made it. The body must not be None."""
    assert row.body is not None
    body = _in_seconds(row.body)
    match row.kind:
        case "action":
            return DefineAction(action=_action_of(body))
        case "resource":
            for name in ("capacity", "rank"):
                if body.get(name, 0) is None:
                    body[name] = UNBOUNDED
            return DefineResource(resource=Resource(**body | {"rate": _rate(body.get("rate"))}))
        case "pool":
            return DefinePool(pool=Pool(**body))
        case "key":
            ref, key = body.pop("action_ref"), body.pop("key")
            return SetKey(action_ref=ref, key=key, settings=KeySettings(**body))
        case "code" | "schedule":
            raise AssertionError("decides nothing here")


def _action_of(body: Mapping[str, Any]) -> Action:
    """Return an action of the JSON of its definition, without the fields that do not matter here."""
    named = _in_seconds(body)
    fields = {name: value for name, value in named.items() if name in Action.__slots__}
    fields["uses"] = tuple(Use(**use) for use in fields.get("uses", ()))
    fields["rate"] = _rate(fields.get("rate"))
    if "retry" in fields:
        fields["retry"] = RetryPolicy(**_in_seconds(fields["retry"]))
    if "runner" in named:
        # What has an entrypoint runs at every worker of its pool.
        fields["needs_code"] = named["runner"] == "python" and named.get("entrypoint") is None
    return Action(**fields)


def _rate(body: Mapping[str, Any] | None) -> Rate | None:
    return None if body is None else Rate(**_in_seconds(body))


def _in_seconds(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields under the names that they have here: durations say that they are seconds."""
    return {_SECONDS.get(name, name): value for name, value in body.items()}
