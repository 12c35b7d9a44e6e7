"""What a worker says of itself in its hello, and what it logs of the answer.

In: settings, the loaded actions and their schemas. Out: the configuration of the core with whole
definitions; log lines where the installation has an action otherwise than the code, with the command
that applies the code's, and where a pool has no action of this worker. Pure but for the log.
"""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from turnstile.common.action_definition import ActionDefinition, action_columns
from turnstile.common.requests import json_text
from turnstile.common.telemetry.logs import Episodes
from turnstile.common.version import installed_version
from turnstile.worker.actions import RegisteredAction
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.differences import Difference, difference, pools_of_actions
from turnstile.worker.schemas import ActionSchemas
from turnstile.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)
_DIFFERS: Final = Episodes(logger, "action_differs")
_POOL_UNUSED: Final = Episodes(logger, "pool_without_actions")
_NONE_IN_POOL: Final = (
    "no action of this worker is in this pool: correct TURNSTILE_WORKER_POOLS, or the pool of an action"
)
_GATHER_SECONDS: Final = 0.002
"""Measured at 4 runs at once: a sixth less processor time here, less than half of the messages."""
_SCHEMA_CHARS_MAX: Final = 1000
"""Of a schema, in a line of the log."""


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
    )


def pools_of(settings: WorkerSettings, definitions: Sequence[ActionDefinition]) -> list[str]:
    """Return the pools that a worker serves."""
    return settings.worker_pools or sorted({each.pool for each in definitions}) or ["default"]


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
