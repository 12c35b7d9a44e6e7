"""Reads what an installation has stored of its gates, in one snapshot of its database.

Out: a `GateHistory`. Deleted executions are missing from it: fair shares are known only where nothing was
deleted.
"""

import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from tests.proof.history.recording import nanoseconds
from turnstile.stress.check.definitions import (
    DefinitionChange,
    DefinitionHistory,
    Definitions,
    history_of,
    pauses,
)
from turnstile.stress.check.passages import GateHistory, Passer, Stay
from turnstile.stress.recording import NEVER

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

_FILE: Final = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def _query(name: str) -> str:
    """Return the statement under the comment that begins with its name."""
    return next(part for part in _FILE.split("\n\n-- ")[1:] if part.startswith(f"{name}:")).partition("\n")[2]


async def read_gates(connection: Connection, **settings: Any) -> GateHistory:
    """Return everything that is stored; `settings` are those of `Definitions`."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        rows = await connection.fetch(_query("executions"))
        definitions = Definitions(
            actions=await _histories(connection, "actions", "action_changes"),
            resources=await _histories(connection, "resources", "resource_changes"),
            pools={
                name: pauses(history)
                for name, history in (await _histories(connection, "pools", "pool_changes")).items()
            },
            **settings,
        )
    return GateHistory(passers=[_passer(row) for row in rows], definitions=definitions)


async def _histories(connection: Connection, current: str, changes: str) -> dict[str, DefinitionHistory]:
    now = {row["name"]: json.loads(row["definition"]) for row in await connection.fetch(_query(current))}
    changed: dict[str, list[DefinitionChange]] = defaultdict(list)
    for row in await connection.fetch(_query(changes)):
        at = nanoseconds(row["changed_at"])
        changed[row["name"]].append(DefinitionChange(at, json.loads(row["old"]), json.loads(row["new"])))
    return {name: history_of(now.get(name, {}), changed[name]) for name in now.keys() | changed.keys()}


def _passer(row: asyncpg.Record) -> Passer:
    stays = json.loads(row["gates"]) if row["gates"] is not None else ()
    if any(each["passed_at"] is None for each in stays):
        # It ended at a gate: to the replay, an execution whose gates are unknown.
        stays = ()
    return Passer(
        execution_id=row["id"],
        action=row["ref"],
        key=row["concurrency_key"],
        priority=row["priority"],
        created_at=nanoseconds(row["created_at"]),
        completed_at=NEVER if row["completed_at"] is None else nanoseconds(row["completed_at"]),
        attempt=row["attempt"],
        stays=tuple(
            Stay(each["gate"], each["units"], _instant(each["arrived_at"]), _instant(each["passed_at"]))
            for each in stays
        ),
        granted_ats=tuple(map(nanoseconds, row["granted_ats"])),
    )


def _instant(text: str) -> int:
    return nanoseconds(datetime.fromisoformat(text))
