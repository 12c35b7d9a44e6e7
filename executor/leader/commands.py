"""Changes of definitions by operators and workers: what each changes, what it is refused for, its answer.

In: commands in their order, and the state. Out: inputs of the queue manager, rows of the turn with the audit
log, and answers. Fields were checked at the door; here only what depends on the other definitions and on the
state. A patch is merged here, so patches of different fields all take effect. Nothing is undone: after a turn
that was not written, all of it is loaded again.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status
from turnstile.common.fields import is_pool
from turnstile.common.requests import read_model
from turnstile.common.worker_protocol import Hello, Welcome
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.leader.command_rows import definition_tag
from turnstile.executor.leader.loading import input_of
from turnstile.executor.leader.ports import DefinitionCommand, InboxRow
from turnstile.executor.leader.records import AuditRow, DefinitionRow
from turnstile.executor.queue_manager.decisions import Finished
from turnstile.executor.queue_manager.inputs import DeletePool, DeleteResource, Input, SetKey
from turnstile.executor.queue_manager.state import State

logger = logging.getLogger(__name__)

Body: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Mapping[str, Any]
Decided: TypeAlias = tuple[Sequence[Input], Answer]

_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "action": ActionDefinition,
    "resource": ResourceDefinition,
    "pool": PoolDefinition,
}
_NAMED: Final = {"action": "ref", "resource": "name", "pool": "name"}
_MERGED: Final = ("retry", "weights")
_FLATTENED: Final = ("retry", "rate")
_RATE: Final = {"starts": None, "per": None}
_LIMITS: Final = frozenset({"max_concurrent", "max_concurrent_total", "capacity"})
_SHOWN_MAX: Final = 10
_REFUSED_CHARS_MAX: Final = 500
_POOLS_MAX: Final = 100
"""Of one worker: its account may name any."""
DELETED_REASON: Final = "its action was deleted"
_WORKER: Final = {"name": "worker", "channel": "worker"}
_UNKNOWN: Final = {
    "action": "ref: there is no action {!r}; start a worker that has it, or define it: "
    "executor actions apply FILE",
    "resource": "name: there is no resource {!r}; GET /resources lists them, and PUT creates one",
    "pool": "name: there is no pool {!r}; GET /pools lists them, and PUT creates one",
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
        self.audit: list[AuditRow] = []
        self._refused: list[str] = []
        """Why definitions of the last hello were not stored."""
        self._delayed: frozenset[int] = frozenset()
        """Of the action that this turn may delete."""
        self._has_deleted = True
        """An action was deleted since `unused_pools`, or before the load."""

    def written(self) -> None:
        """Forget what the committed turn has written."""
        self.rows, self.new_action_ids, self.audit = [], [], []

    def action(self, ref: str) -> Body:
        """Return the definition of an action; empty if it has none."""
        return self.bodies.get(("action", ref), {})

    # What operators ask for.

    def change(self, command: DefinitionCommand, state: State) -> Decided:
        """Apply a command that is no deletion of an action. Raises Refusal."""
        if command.kind == "key":
            return self._change_key(command)
        if command.definition is None:
            return self._delete_resource(command, state)
        stored = self.bodies.get((command.kind, command.name))
        if stored is None and command.is_patch:
            raise unknown(command.kind, command.name)
        _check_conditions(command, stored)
        body = _merged(command, stored) if command.is_patch else command.definition
        self._check(command, body, stored or {})
        # A patch with the defaults sets nothing; a PUT does.
        known = _with_defaults(command.kind, stored) if command.is_patch else stored
        answer = {"type": "defined", "name": command.name, "is_changed": body != known}
        if body == known:
            return (), answer
        row = self._store(command.kind, command.name, body, command.changed_by)
        return [input_of(row)], answer

    def check_deletion(self, command: DefinitionCommand, state: State) -> None:
        """Raise Refusal if an action that is to be deleted is unknown, or not in the expected state."""
        stored = self.bodies.get(("action", command.name))
        if stored is None and command.name not in state.actions:
            raise unknown("action", command.name)
        _check_conditions(command, stored)
        self._delayed = frozenset(
            each.id
            for each in state.executions.values()
            if each.queue.action.ref == command.name and each.status is Status.DELAYED
        )

    def deleted(self, command: DefinitionCommand, ended: Sequence[Finished]) -> None:
        """Note that the queue manager has deleted an action, and cancelled these with it."""
        self._has_deleted = True
        ref = command.name
        keys = [name for kind, name in self.bodies if kind == "key" and name.startswith(f"{ref}/")]
        code = [("code", ref)] if ("code", ref) in self.bodies else []
        for kind, name in (*(("key", name) for name in keys), *code, ("action", ref)):
            body = self.bodies.pop((kind, name), None)
            self.rows.append(_row(kind, name, None, command.changed_by))
            if kind == "action":
                self._log_change("action", ref, body or {}, {}, command.changed_by)
        self.cancelled_with(command, ended)

    def cancelled_with(self, command: DefinitionCommand, ended: Sequence[Finished]) -> None:
        """Record that these were cancelled with an action that is deleted."""
        for each in ended:
            before = Status.DELAYED if each.id in self._delayed else Status.QUEUED
            self.log_cancel(each.id, command.name, (before, each.status), DELETED_REASON, command.changed_by)

    def drained(self, command: DefinitionCommand, *, was_draining: bool | None) -> Answer:
        """Return the answer about a worker; None: no such worker lives. Raises Refusal."""
        if was_draining is None:
            raise unknown("worker", command.name)
        is_draining = bool((command.definition or {}).get("is_draining"))
        if is_draining and not was_draining and command.changed_by is not None:
            self.audit.append(
                AuditRow(
                    verb="drained", subject_kind="worker", subject=command.name, action_ref=None,
                    changed_by=command.changed_by, before={"state": "live"}, after={"state": "draining"},
                )
            )  # fmt: skip
        return {"type": "drained", "name": command.name, "is_draining": is_draining}

    # What workers register.

    def register(self, hello: Hello, state: State) -> Iterator[Input]:
        """Yield the actions of a worker that the installation lacks. What exists is never changed."""
        for name in hello.pools[:_POOLS_MAX]:
            if (row := self._named_pool(name)) is not None:
                yield input_of(row)
        self._refused = []
        for given in hello.definitions:
            ref = given.get("ref")
            if isinstance(ref, str) and (("action", ref) in self.bodies or ref in state.actions):
                continue
            try:
                row = self._registered(ref, given)
            except Refusal as refusal:
                fields = {"action_ref": str(ref)[:200], "worker": hello.name, "reason": refusal.message}
                logger.warning("definition_refused", extra=fields)
                self._refused.append(f"action {str(ref)[:200]!r}: {refusal.message}"[:_REFUSED_CHARS_MAX])
                continue
            yield input_of(row)

    def welcome(self, hello: Hello) -> Welcome:
        """Return the answer to a worker whose actions were registered: what differs, and what was refused."""
        refused, self._refused = self._refused, []
        stored = [
            body
            for given in hello.definitions
            if (body := self.action(str(given.get("ref"))))
            and any(body.get(name) != value for name, value in given.items())
        ]
        return Welcome(stored=tuple(stored), refused=tuple(refused[:_SHOWN_MAX]))

    def store_code(self, ref: str, body: Body) -> None:
        """Store the schemas that workers derived from the code of an action."""
        self.bodies["code", ref] = body
        self.rows.append(_row("code", ref, body, _WORKER))

    def _registered(self, ref: Any, given: Body) -> DefinitionRow:
        if not isinstance(ref, str):
            raise Refusal(Code.INVALID_MESSAGE, "ref: expected text")
        if given.get("parameters_schema") is not None or given.get("result_schema") is not None:
            # A worker's schemas are those of its code; only an operator gives one to the action.
            raise Refusal(
                Code.INVALID_MESSAGE, "parameters_schema, result_schema: only an operator sets them"
            )
        body = read_model(ActionDefinition, dict(given)).model_dump(mode="json")
        self._check_uses(ref, body, {})
        return self._store("action", ref, body, _WORKER)

    def _named_pool(self, name: str) -> DefinitionRow | None:
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
        self.audit.append(
            AuditRow(
                verb="changed", subject_kind="action", subject=ref, action_ref=ref,
                changed_by=command.changed_by, before=_written_key(key, stored),
                after=_written_key(key, body),
            )
        )  # fmt: skip
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
        self._log_change("resource", name, stored, {}, command.changed_by)
        return [DeleteResource(name=name)], {"type": "deleted", "name": name}

    # Parts.

    def _actions(self) -> Iterator[tuple[str, Body]]:
        return ((name, body) for (kind, name), body in self.bodies.items() if kind == "action")

    def _store(self, kind: str, name: str, body: Body, changed_by: Body | None) -> DefinitionRow:
        stored = self.bodies.get((kind, name), {})
        self.bodies[kind, name] = body
        row = _row(kind, name, body, changed_by)
        self.rows.append(row)
        if kind == "action":
            self._named_pool(body.get("pool", "default"))
        if kind == "action" and name not in self.action_ids:
            new_id = self.action_ids[name] = max(self.action_ids.values(), default=0) + 1
            self.new_action_ids.append((name, new_id))
        self._log_change(kind, name, _with_defaults(kind, stored) or {}, body, changed_by)
        return row

    def _check(self, command: DefinitionCommand, body: Body, stored: Body) -> None:
        if command.kind == "action":
            self._check_uses(command.name, body, stored)
        elif command.kind == "resource" and body.get("rank") != stored.get("rank"):
            changed = {**self.bodies, ("resource", command.name): body}
            for ref, action in self._actions():
                uses = _uses(action)
                if any(use["resource"] == command.name for use in uses):
                    problem = _same_rank(uses, changed)
                    if problem is not None:
                        what = f"resource '{command.name}': rank: the action '{ref}' uses both: {problem}"
                        raise Refusal(Code.INVALID_MESSAGE, what)

    def _check_uses(self, ref: str, body: Body, stored: Body) -> None:
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

    # The audit log.

    def _log_change(self, kind: str, name: str, old: Body, new: Body, changed_by: Body | None) -> None:
        """Record how a definition was changed; empty: there was none, or there is none any more."""
        before, after = _flat(kind, old), _flat(kind, new)
        changed = {each for each in {*before, *after} if before.get(each, ...) != after.get(each, ...)}
        if not changed:
            return
        self.audit.append(
            AuditRow(
                verb=_verb(changed, old, new), subject_kind=kind, subject=name,
                action_ref=name if kind == "action" else None, changed_by=changed_by,
                before={each: before[each] for each in sorted(changed) if each in before},
                after={each: after[each] for each in sorted(changed) if each in after},
            )
        )  # fmt: skip

    def log_cancel(
        self, execution_id: int, ref: str, moved: tuple[Status, Status], reason: str | None,
        changed_by: Body | None,
    ) -> None:  # fmt: skip
        """Record that an operator cancelled an execution, or had its worker asked to stop it.

        `moved`: its status before and after.
        """
        before, after = moved
        if changed_by is None:
            return
        new: dict[str, Any] = {"status": str(after)}
        if after is not Status.CANCELLED:
            new["cancel_requested"] = True
        if reason is not None:
            new["reason"] = reason
        self.audit.append(
            AuditRow(
                verb="cancelled", subject_kind="execution", subject=str(execution_id), action_ref=ref,
                changed_by=changed_by, before={"status": str(before)}, after=new,
            )
        )  # fmt: skip

    def log_retry(self, retry_of: int, ref: str, retry_id: int, changed_by: Body | None) -> None:
        """Record that an operator had an ended execution run again."""
        if changed_by is not None:
            self.audit.append(
                AuditRow(
                    verb="retried", subject_kind="execution", subject=str(retry_of), action_ref=ref,
                    changed_by=changed_by, before={}, after={"retry_id": retry_id},
                )
            )  # fmt: skip


def in_use(command: DefinitionCommand, waiting: int, running: int) -> InUse:
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


def _with_defaults(kind: str, body: Body | None) -> Body | None:
    """Return a definition with all fields: a pool that was only named has none."""
    return PoolDefinition(**body).model_dump(mode="json") if kind == "pool" and body else body


def _uses(body: Body) -> Sequence[Body]:
    uses: Sequence[Body] = body.get("uses") or ()
    return uses


def _merged(command: DefinitionCommand, stored: Body | None) -> Body:
    """Return the stored definition with the given fields, checked as a whole. Raises Refusal."""
    assert stored is not None
    given = command.definition or {}
    merged = {**stored, **given, _NAMED[command.kind]: command.name}
    for field in _MERGED:
        if isinstance(part := given.get(field), Mapping) and field in stored:
            merged[field] = {**stored[field], **part}
    return read_model(_MODELS[command.kind], merged).model_dump(mode="json")


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


def _flat(kind: str, body: Body) -> dict[str, Any]:
    """Return a definition as the audit log shows it: flat, and without its name."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        if name == _NAMED.get(kind):
            continue
        if name in _FLATTENED:
            inner = (_RATE if name == "rate" else {}) if value is None else value
            found |= {f"{name}.{part}": _plain(each) for part, each in inner.items()}
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _verb(changed: set[str], old: Body, new: Body) -> str:
    if not old:
        return "created"
    if not new:
        return "deleted"
    if changed <= _LIMITS:
        return "limit_changed"
    if changed == {"paused"}:
        return "paused" if new["paused"] else "resumed"
    return "changed"


def _written_key(key: str, body: Body | None) -> Body:
    if body is None:
        return {}
    limit = {"max_concurrent": body.get("max_concurrent")} if body.get("has_limit") else {}
    return {f"keys.{key}": {**limit, "weight": body.get("weight", 1)}}
