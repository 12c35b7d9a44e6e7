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

from turnstile.common.action_definition import ActionDefinition, action_columns
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
_DURATIONS: Final[Mapping[str, str]] = {
    "timeout_seconds": "timeout",
    "ttl_seconds": "ttl",
    "keep_for_seconds": "keep_for",
    "retry_delay_seconds": "retry.delay",
    "retry_max_delay_seconds": "retry.max_delay",
}
"""The field of each column that is a duration."""
_RENAMED: Final[Mapping[str, str]] = {
    "retry_max_attempts": "retry.max_attempts",
    "retry_factor": "retry.factor",
    "retry_jitter": "retry.jitter",
}
_RATE: Final = ("rate_starts", "rate_per_seconds")
_NOT_COMPARED: Final = frozenset({"concurrency_key_path", "parameters_schema", "result_schema"})
"""A path says what its key says; schemas are compared by what they mean, or not at all."""
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
    wanted: Mapping[str, Any], stored: Mapping[str, Any], schemas: ActionSchemas | None
) -> Difference | None:
    """Return how the columns of an action differ from those that the code wants; None: they do not."""
    given, derived = stored.get("parameters_schema"), None if schemas is None else schemas.parameters
    # A file may give a schema that says the same: code never does.
    differ = given is not None and derived is not None and not is_same_schema(given, derived)
    names = [name for name in wanted.keys() - _NOT_COMPARED if stored.get(name) != wanted[name]]
    before, after = _fields(stored, names), _fields(wanted, names)
    values = {name: Values(before[name], after[name]) for name in after}
    pair = (given, derived) if differ else None
    return Difference(ref=str(wanted["ref"]), values=values, schemas=pair) if values or differ else None


def _fields(columns: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    return dict(_field(name, columns) for name in names)


def _field(name: str, columns: Mapping[str, Any]) -> tuple[str, str]:
    value = columns.get(name)
    if name in _RATE:
        starts, per = (columns.get(part) for part in _RATE)
        return "rate", "none" if starts is None or per is None else f"{starts}/{format_duration(per)}"
    if name == "fair":
        return "order", "fair" if value else "arrival"
    if name in _DURATIONS:
        return _DURATIONS[name], "none" if value is None else format_duration(value)
    return _RENAMED.get(name, name), _text(value)


def _text(value: object) -> str:
    if value is None:
        return "none"
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
        ref = action.definition.ref
        return difference(action_columns(action.definition), _columns(body), self._schemas.get(ref))

    def _log(self, each: Difference) -> None:
        fields = {"action_ref": each.ref, "fields": ",".join(each.fields)}
        if each.values:
            fields["differences"] = str(each)
        fields["to_apply_the_code"] = f"'{each.remedy(self._actions[each.ref].module)}'"
        if each.schemas is not None:
            given, derived = (json_text(schema)[:_SCHEMA_CHARS_MAX] for schema in each.schemas)
            fields |= {"parameters_schema": given, "schema_of_code": derived}
        _DIFFERS.failed(each.ref, **fields)


def _columns(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored definition as `differences` compares it; a newer version may have further fields."""
    known = {name: value for name, value in body.items() if name in ActionDefinition.model_fields}
    return action_columns(ActionDefinition.model_validate(known))
