"""Reads gates after the queue: where an execution waits, and what it passed.

In: rows of the statements in `executor/sql/gates.sql`. Out: facts for `waiting_reason`, and schemas.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg
from pydantic import TypeAdapter

from turnstile.executor.queries.schemas import (
    HOLDERS_MAX,
    ExecutionDetail,
    ExecutionRecord,
    GatedExecutionDetail,
    GatedExecutionRecord,
    GateStep,
    UnitHolder,
)
from turnstile.executor.queries.waiting_reason import Facts, GateFacts, RateFacts

if TYPE_CHECKING:
    Row: TypeAlias = asyncpg.Record

_HOLDERS = TypeAdapter(list[UnitHolder])
_RATES = TypeAdapter(list[RateFacts])
_STEPS = TypeAdapter(list[GateStep])


def with_gates(facts: Facts, row: "Row") -> Facts:
    """Return the facts with those of a row of `execution_gates`."""
    has_passed_queue = row["has_passed_queue"]
    holders = sorted({*facts.holders, *(row["later_ids"] or ())})
    return replace(
        facts,
        position=None if has_passed_queue else facts.position,
        holders=holders[:HOLDERS_MAX],
        has_gates=has_passed_queue or row["has_route"],
        gate=None if row["kind"] is None else _gate(row),
    )


def with_steps(detail: ExecutionDetail, row: "Row") -> ExecutionDetail:
    """Return the execution with the gates that it has passed, if it has any after its queue."""
    if row["gates"] is None:
        return detail
    fields = {name: getattr(detail, name) for name in ExecutionDetail.model_fields}
    return GatedExecutionDetail(**fields, gates=_STEPS.validate_json(row["gates"]))


def record_with_steps(row: "Row", fields: Mapping[str, Any]) -> ExecutionRecord:
    """Return a listed execution with these fields, and with the gates that it has passed, if any."""
    if row["gates"] is None:
        return ExecutionRecord(**fields, stopping=row["stopping"])
    return GatedExecutionRecord(**fields, stopping=row["stopping"], gates=_STEPS.validate_json(row["gates"]))


def _gate(row: "Row") -> GateFacts:
    return GateFacts(
        id=row["gate_id"],
        kind=row["kind"],
        name=row["name"],
        closed=row["closed"],
        capacity=row["capacity"],
        held=row["held"],
        units=row["units"],
        position=row["position"],
        waiting=row["waiting"],
        holders=_HOLDERS.validate_json(row["holders"] or "[]"),
        rates=_RATES.validate_json(row["rates"] or "[]"),
    )
