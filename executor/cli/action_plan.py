"""Decides what applying a file of actions changes: each named action is new, changed or the same.

Pure: definitions in, a plan out. The file says all about the actions in it and nothing about others, unless
these are to be pruned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnstile.common.action_definition import ActionDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What becomes of one action."""

    definition: ActionDefinition
    kind: Literal["create", "change", "keep", "delete"]
    changes: Mapping[str, tuple[Any, Any]]
    """What was and what will be, by field; for a new action what differs from the defaults."""


def plan(
    wanted: Sequence[ActionDefinition], stored: Mapping[str, ActionDefinition], *, prune: bool = False
) -> list[Step]:
    """Return a step for each wanted action, in order, and with `prune` one for each that is not wanted."""
    steps = [_step(definition, stored.get(definition.ref)) for definition in wanted]
    if prune:
        named = {definition.ref for definition in wanted}
        steps += [
            Step(definition=stored[ref], kind="delete", changes={}) for ref in sorted(stored.keys() - named)
        ]
    return steps


def _step(wanted: ActionDefinition, stored: ActionDefinition | None) -> Step:
    if stored is None:
        changes = _differences(ActionDefinition.model_construct(ref=wanted.ref), wanted)
        return Step(definition=wanted, kind="create", changes=changes)
    changes = _differences(stored, wanted)
    return Step(definition=wanted, kind="change" if changes else "keep", changes=changes)


def _differences(old: ActionDefinition, new: ActionDefinition) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(old), _flat(new)
    return {field: (before[field], after[field]) for field in after if before[field] != after[field]}


def _flat(definition: ActionDefinition) -> dict[str, Any]:
    fields = definition.model_dump(mode="json")
    retry = fields.pop("retry")
    return {**fields, **{f"retry.{name}": value for name, value in retry.items()}}
