"""What a worker says of itself in its hello, and what it logs of the answer.

In: settings, the loaded actions and their schemas. Out: the configuration of the core with whole
definitions; log lines where the installation has an action otherwise than the code, with the command
that applies the code's, and where a pool has no action of this worker. Pure but for the log.
"""

import json
import logging
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.durations import format_duration
from turnstile.common.requests import json_text
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.version import installed_version
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.schemas import ActionSchemas, is_same_schema
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)
_DIFFERS: Final = Episodes(logger, "action_differs")
_POOL_UNUSED: Final = Episodes(logger, "pool_without_actions")
_NONE_IN_POOL: Final = (
    "no action of this worker is in this pool: correct TURNSTILE_WORKER_POOLS, or the pool of an action"
)
_GATHER_SECONDS: Final = 0.002
"""Measured at 4 runs at once: a sixth less processor time here, less than half of the messages."""
_RUN_GATHER_SECONDS: Final = 0.01
"""Measured with jobs of 20 ms at limit 4: a fifth less processor time of all processes."""
_SCHEMA_CHARS_MAX: Final = 1000
"""Of a schema, in a line of the log."""
_DURATIONS: Final = frozenset({"timeout", "ttl", "keep_for", "retry.delay", "retry.max_delay"})
_SCHEMAS: Final = {"parameters_schema", "result_schema"}
"""Compared by what they mean, or not at all."""
_VALUE_CHARS_MAX: Final = 200


def worker_config(
    settings: WorkerSettings,
    actions: Sequence[RegisteredAction],
    schemas: Mapping[str, ActionSchemas],
    start_notes: Sequence[str],
) -> WorkerConfig:
    """Return how the core of this worker works, and what its hello says."""
    definitions = [action.definition for action in actions]
    return WorkerConfig(
        name=settings.worker_name,
        pools=tuple(pools_of(settings, definitions)),
        actions=tuple(each.ref for each in definitions),
        definitions=tuple(each.model_dump(mode="json") for each in definitions),
        schedules=tuple(each.stored() for action in actions for each in action.schedules),
        about={
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": installed_version(),
            # It learns of the request with the answer to its next heartbeat.
            "drain_seconds": settings.heartbeat_interval + settings.drain_timeout,
            "stop_grace_seconds": settings.stop_grace,
            "start_notes": [note.replace("\0", "") for note in start_notes],
            "schemas": [
                {"ref": ref, "parameters": each.parameters, "result": each.result}
                for ref, each in schemas.items()
            ],
        },
        concurrency=settings.worker_concurrency,
        lease_seconds=settings.lease_duration,
        heartbeat_seconds=settings.heartbeat_interval,
        drain_seconds=settings.drain_timeout,
        grace_seconds=settings.stop_grace,
        gather_seconds=_GATHER_SECONDS,
        run_gather_seconds=_RUN_GATHER_SECONDS,
    )


def pools_of(settings: WorkerSettings, definitions: Sequence[ActionDefinition]) -> list[str]:
    """Return the pools that a worker serves."""
    return settings.worker_pools or sorted({each.pool for each in definitions}) or ["default"]


class Values(NamedTuple):
    """A field that differs, as text."""

    stored: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An action whose definition in the database differs from the code. The database takes precedence."""

    ref: str
    values: Mapping[str, Values]
    """By field, as in a file; without the schema."""
    schemas: tuple[Any, Any] | None = None
    """The schema of the parameters in the database and that of the code, if they differ."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that differ, by name."""
        return tuple(sorted([*self.values, *(["parameters_schema"] if self.schemas is not None else [])]))

    def __str__(self) -> str:
        """Return both values of each field."""
        return "; ".join(
            f"{field}: stored {stored}, code {code}" for field, (stored, code) in sorted(self.values.items())
        )

    def remedy(self, module: str) -> str:
        """Return the command that makes the database equal to the code of this module."""
        match self.fields:
            case ("max_concurrent",):
                return f"executor actions limit {self.ref} {self.values['max_concurrent'].code}"
            case ("paused",):
                command = "pause" if self.values["paused"].code == "true" else "resume"
                return f"executor actions {command} {self.ref}"
            case _:
                return (
                    f"worker actions --actions {shlex.quote(module)} --ref {self.ref} --json "
                    "| executor actions apply -"
                )


def pools_of_actions(definitions: Sequence[ActionDefinition], differences: Sequence[Difference]) -> list[str]:
    """Return the pools of these actions as the database has them, by name."""
    stored = {each.ref: each.values["pool"].stored for each in differences if "pool" in each.values}
    return sorted({stored.get(each.ref, each.pool) for each in definitions})


def difference(
    code: ActionDefinition, stored: ActionDefinition, schemas: ActionSchemas | None
) -> Difference | None:
    """Return how the stored definition of an action differs from the code's; None: it does not."""
    given, derived = stored.parameters_schema, None if schemas is None else schemas.parameters
    # A file may give a schema that says the same: code never does.
    differ = given is not None and derived is not None and not is_same_schema(given, derived)
    before, after = _fields(stored), _fields(code)
    values = {
        name: Values(_text(name, before[name]), _text(name, value))
        for name, value in after.items()
        if value != before[name]
    }
    pair = (given, derived) if differ else None
    return Difference(ref=code.ref, values=values, schemas=pair) if values or differ else None


def _fields(definition: ActionDefinition) -> dict[str, Any]:
    """Return the values of a definition by field, as in a file, without the schemas."""
    fields = definition.model_dump(mode="json", exclude=_SCHEMAS)
    return fields | {f"retry.{name}": value for name, value in fields.pop("retry").items()}


def _text(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if field in _DURATIONS:
        return format_duration(value)
    if field == "rate":
        return f"{value['starts']}/{format_duration(value['per'])}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS_MAX else text[: _VALUE_CHARS_MAX - 1] + "…"


class Differences:
    """What the installation has otherwise than the code of this worker."""

    def __init__(
        self,
        actions: Sequence[RegisteredAction],
        schemas: Mapping[str, ActionSchemas],
        pools: Sequence[str],
    ) -> None:
        self._actions = {action.definition.ref: action for action in actions}
        self._schemas = schemas
        self._pools = pools

    def log(self, stored: Sequence[Mapping[str, Any]]) -> None:
        """Log which stored definitions differ from the code, and pools without an action of this worker."""
        found = [each for body in stored if (each := self._difference(body)) is not None]
        for each in found:
            self._log(each)
        of_actions = pools_of_actions([each.definition for each in self._actions.values()], found)
        for pool in self._pools:
            if of_actions and pool not in of_actions:
                fields = {"pool": pool, "pools_of_its_actions": ",".join(of_actions), "reason": _NONE_IN_POOL}
                _POOL_UNUSED.failed(pool, **fields)

    def _difference(self, body: Mapping[str, Any]) -> Difference | None:
        action = self._actions.get(body.get("ref", ""))
        if action is None:
            return None
        # A newer version may have further fields.
        known = {name: value for name, value in body.items() if name in ActionDefinition.model_fields}
        stored = ActionDefinition.model_validate(known)
        return difference(action.definition, stored, self._schemas.get(stored.ref))

    def _log(self, each: Difference) -> None:
        fields = {"action_ref": each.ref, "fields": ",".join(each.fields)}
        if each.values:
            fields["differences"] = str(each)
        fields["to_apply_the_code"] = f"'{each.remedy(self._actions[each.ref].module)}'"
        if each.schemas is not None:
            given, derived = (json_text(schema)[:_SCHEMA_CHARS_MAX] for schema in each.schemas)
            fields |= {"parameters_schema": given, "schema_of_code": derived}
        _DIFFERS.failed(each.ref, **fields)
