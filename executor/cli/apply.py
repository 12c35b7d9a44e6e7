"""`executor actions apply`: what a file changes, step by step, over the HTTP API.

In: the definitions of a file, and those that are stored. Out: a step for each definition, applied in the
order in which they need each other, and printed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.exit_codes import ExitCode
from turnstile.common.invalid_values import explained
from turnstile.common.schedules import ScheduleDefinition
from turnstile.executor.cli.action_file import (
    ActionEntry,
    Definition,
    DefinitionFile,
    check_uses,
    name_of,
    noun_of,
    read_action_file,
)
from turnstile.executor.cli.arguments import encode
from turnstile.executor.cli.client import Api, ApiRefused, ApiUnreachable
from turnstile.executor.cli.confirmation import confirm, listed
from turnstile.executor.cli.documents import AppliedAction, AppliedFile, AppliedGate, FieldChange, StepKind
from turnstile.executor.cli.keys import key_path, stored_settings
from turnstile.executor.cli.output import print_json, print_line, read_all, shown, warn
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition, key_fields

D = TypeVar("D", ActionDefinition, ResourceDefinition, PoolDefinition, ScheduleDefinition)

_SIGNS: Final = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "keep": ("=", "dim"),
    "delete": ("-", "red"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What applying a file does with one definition."""

    definition: Definition
    kind: StepKind
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Old and new value by field; for a new one the difference from the defaults."""
    keys: Mapping[str, KeySettings | None] = field(default_factory=dict)
    """Concurrency keys that change; None: their settings are deleted."""
    kept_keys: Sequence[str] = ()
    """Concurrency keys whose settings stay, although the file omits them."""

    @property
    def name(self) -> str:
        """The name of the definition."""
        return name_of(self.definition)

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/{noun_of(type(self.definition))}s/{self.name}"

    @property
    def subject(self) -> str:
        """What changes, for people."""
        noun = noun_of(type(self.definition))
        return self.name if noun == "action" else f"{noun} {self.name}"

    @property
    def deleted_subjects(self) -> Sequence[str]:
        """What is deleted, for people: the action or resource, or settings of its keys."""
        if self.kind == "delete":
            return (self.subject,)
        return [f"keys.{key} of {self.subject}" for key, settings in self.keys.items() if settings is None]

    @property
    def changes_definition(self) -> bool:
        """Whether more than the settings of keys changes."""
        return len(self.changes) > len(self.keys)


def apply_file(
    api: Api,
    path: str,
    delete_action: Callable[[str], None],
    *,
    dry_run: bool,
    prune: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Apply a file and print each step; exit code 1 if a step was refused."""
    steps = _steps(api, read_action_file(path), prune=prune)
    deleted = [subject for step in steps for subject in step.deleted_subjects]
    if deleted and not dry_run:
        confirm(
            lambda: f"Apply the file, and delete {len(deleted)} that it omits: {listed(deleted)}?",
            yes=yes,
            destroys=f"--prune deletes what the file omits ({listed(deleted)})",
        )
    refused: dict[str, str] = {}
    for number, step in enumerate(steps):
        if not (dry_run or step.kind == "keep"):
            try:
                _apply(api, step, delete_action)
            except ApiRefused as refusal:
                refused[step.subject] = refusal.message
            except ApiUnreachable as error:
                _print_result(steps[:number], refused, dry_run=dry_run, as_json=as_json)
                raise ApiUnreachable(
                    f"{error.message}\n{step.subject}: unknown whether it was changed; earlier "
                    "entries were applied, later entries were not; the file can be applied again"
                ) from None
        if not as_json:
            _print_step(step)
    _print_result(steps, refused, dry_run=dry_run, as_json=as_json)
    if refused:
        raise typer.Exit(ExitCode.FAILED)


def _steps(api: Api, wanted: DefinitionFile, *, prune: bool) -> list[Step]:
    """Return all steps in the order of their application: each needs what it names."""
    actions = _stored(api, ActionDefinition)
    needs_resources = wanted.resources is not None or any(entry.uses for entry in wanted.actions)
    resources = _stored(api, ResourceDefinition) if needs_resources else {}
    check_uses(wanted, actions, resources)
    pools = {} if wanted.pools is None else _stored(api, PoolDefinition)
    schedules = {} if wanted.schedules is None else _stored(api, ScheduleDefinition)
    keys = {
        entry.ref: _stored_keys(api, entry.ref)
        for entry in wanted.actions
        if entry.keys is not None and entry.ref in actions
    }
    of_resources = plan(wanted.resources, resources, prune=prune)
    of_actions = plan(wanted.actions, actions, keys=keys, prune=prune)
    of_schedules = plan(wanted.schedules, schedules, prune=prune)
    return [
        *(step for step in of_resources if step.kind != "delete"),
        *plan(wanted.pools, pools, prune=prune),
        *(step for step in of_actions if step.kind != "delete"),
        *of_schedules,
        *(step for step in of_actions if step.kind == "delete"),
        *(step for step in of_resources if step.kind == "delete"),
    ]


def _stored(api: Api, model: type[D]) -> dict[str, D]:
    noun = noun_of(model)
    found: dict[str, D] = {}
    for item in read_all(api, f"/{noun}s"):
        name = item["ref" if noun == "action" else "name"]
        try:
            found[name] = model.model_validate(
                {each: item[each] for each in model.model_fields if each in item}
            )
        except ValidationError as error:
            raise ApiUnreachable(
                f"the API returns a definition of the {noun} {name} that this version does not accept: "
                f"{explained(error, whole='definition')}"
            ) from None
    return found


def _stored_keys(api: Api, ref: str) -> dict[str, KeySettings]:
    items = read_all(api, f"/actions/{ref}/keys")
    return {item["concurrency_key"]: stored_settings(item) for item in items}


def plan(
    wanted: Sequence[Definition] | None,
    stored: Mapping[str, Definition],
    *,
    keys: Mapping[str, Mapping[str, KeySettings]] | None = None,
    prune: bool = False,
) -> list[Step]:
    """Return a step for each wanted definition, in order, and with `prune` for every other stored one.

    None: the file says nothing about this kind, so all are kept. `keys` are the stored settings of keys, by
    action; those that an action omits are deleted with `prune`.
    """
    if wanted is None:
        return []
    steps = [
        _step(each, stored.get(name_of(each)), (keys or {}).get(name_of(each), {}), prune=prune)
        for each in wanted
    ]
    left = sorted(stored.keys() - {step.name for step in steps}) if prune else []
    others = [_omitted(stored[name]) for name in left]
    return [*steps, *(step for step in others if step.kind != "keep")]


def _omitted(stored: Definition) -> Step:
    """Return the deletion of a definition that the file omits; a pool gets the default settings."""
    if isinstance(stored, PoolDefinition):
        return _step(PoolDefinition(name=stored.name), stored, {}, prune=True)
    return Step(definition=stored, kind="delete")


def _step(
    wanted: Definition, stored: Definition | None, stored_keys: Mapping[str, KeySettings], *, prune: bool
) -> Step:
    settings = wanted.keys if isinstance(wanted, ActionEntry) else None
    omitted = [] if settings is None else sorted(stored_keys.keys() - settings.keys())
    names = [*(settings or ()), *(omitted if prune else ())]
    keys, key_changes = _changed_keys(settings or {}, stored_keys, names)
    changes = {**_differences(_default(wanted) if stored is None else stored, wanted), **key_changes}
    kind: StepKind = "create" if stored is None else "change" if changes else "keep"
    return Step(definition=wanted, kind=kind, changes=changes, keys=keys, kept_keys=() if prune else omitted)


def _default(definition: Definition) -> Definition:
    """Return a definition of this name with all defaults."""
    # A schedule has no valid default: what follows is only compared.
    defaults = {name: each.get_default(call_default_factory=True) for name, each in _fields(definition)}
    return definition.model_copy(update=defaults)


def _fields(definition: Definition) -> Iterable[tuple[str, FieldInfo]]:
    """Return the fields of a definition that have a default."""
    return ((n, each) for n, each in type(definition).model_fields.items() if not each.is_required())


def _changed_keys(
    settings: Mapping[str, KeySettings], stored: Mapping[str, KeySettings], names: Sequence[str]
) -> tuple[dict[str, KeySettings | None], dict[str, tuple[Any, Any]]]:
    keys: dict[str, KeySettings | None] = {}
    changes: dict[str, tuple[Any, Any]] = {}
    for key in sorted(names):
        old, new = stored.get(key), settings.get(key)
        before, after = (None if each is None else key_fields(each) for each in (old, new))
        if before != after:
            keys[key] = new
            changes[f"keys.{key}"] = (before, after)
    return keys, changes


def _differences(old: Definition, new: Definition) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(old), _flat(new)
    return {field: (before[field], after[field]) for field in after if before[field] != after[field]}


def _flat(definition: Definition) -> dict[str, Any]:
    fields = definition.model_dump(mode="json", exclude={"keys"})
    retry = fields.pop("retry", {})
    return {**fields, **{f"retry.{name}": value for name, value in retry.items()}}


def _apply(api: Api, step: Step, delete_action: Callable[[str], None]) -> None:
    if step.kind == "delete" and isinstance(step.definition, ActionDefinition):
        delete_action(step.name)
    elif step.kind == "delete":
        api.delete(step.path)
    else:
        _store(api, step)


def _store(api: Api, step: Step) -> None:
    if step.kind == "create" or step.changes_definition:
        api.put(step.path, encode(step.definition.model_dump(mode="json", exclude={"keys"})))
    for key, settings in step.keys.items():
        path = key_path(step.name, key)
        if settings is None:
            api.delete(path)
        else:
            api.put(path, encode(key_fields(settings)))


def _print_step(step: Step) -> None:
    sign, style = _SIGNS[step.kind]
    changes = ", ".join(
        f"{field}: {shown(field, new)}"
        if step.kind == "create"
        else f"{field}: {shown(field, old)} -> {shown(field, new)}"
        for field, (old, new) in step.changes.items()
    )
    print_line(f"{sign} {step.subject}" + (f"  {changes}" if changes else ""), style=style)
    if step.kept_keys:
        warn(f"{step.subject}: keeps the settings of the keys {listed(step.kept_keys)}; --prune deletes them")


def _print_result(steps: Sequence[Step], refused: dict[str, str], *, dry_run: bool, as_json: bool) -> None:
    for subject, message in refused.items():
        warn(f"{subject}: {message}")
    if not as_json:
        return
    actions: list[AppliedAction] = []
    gates: dict[str, list[AppliedGate]] = {"resource": [], "pool": [], "schedule": []}
    for step in steps:
        changes = {field: FieldChange(old=old, new=new) for field, (old, new) in step.changes.items()}
        done: dict[str, Any] = {"step": step.kind, "changes": changes, "refused": refused.get(step.subject)}
        noun = noun_of(type(step.definition))
        if noun == "action":
            actions.append(AppliedAction(ref=step.name, kept_keys=step.kept_keys, **done))
        else:
            gates[noun].append(AppliedGate(name=step.name, **done))
    print_json(
        AppliedFile(
            dry_run=dry_run,
            resources=gates["resource"],
            pools=gates["pool"],
            actions=actions,
            schedules=gates["schedule"],
        )
    )
