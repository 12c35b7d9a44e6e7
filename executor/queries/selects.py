"""Builds the selects of `statements` from the tables of the models, with SQLAlchemy.

In: the names of the conditions that a filter sets. Out: a compiled select, one for each combination. Imported
at the first list: with SQLAlchemy and the models, this module takes a third of the time that an executor
takes to start.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    CTE,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Interval,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from turnstile.common.tables import metadata
from turnstile.executor.queries.schemas import StoredExecution
from turnstile.executor.sql import query

_GENERATIONS_MAX: Final = 100
_DIALECT: Final = PGDialect_asyncpg()  # type: ignore[no-untyped-call]

_EXECUTION: Final[Table] = metadata.tables["execution"]
_ACTION: Final[Table] = metadata.tables["action"]
_ACTION_QUEUE: Final[Table] = metadata.tables["action_queue"]
_QUEUE_STATE: Final[Table] = metadata.tables["queue_state"]
_WAITING: Final[Table] = metadata.tables["waiting"]
_DELAYED: Final[Table] = metadata.tables["delayed"]


def _view(name: str, columns: Iterable[Column[Any]]) -> Table:
    """Return a view of `common/sql`, with these columns of its tables."""
    return Table(name, MetaData(), *(Column(each.name, each.type) for each in columns), schema="turnstile")


_CURRENT_EXECUTION: Final = _view("current_execution", _EXECUTION.c)
_CURRENT_QUEUE: Final = _view(
    "current_queue", [*_ACTION_QUEUE.c, _QUEUE_STATE.c.depth, _QUEUE_STATE.c.head_id, _QUEUE_STATE.c.heads]
)
_LIVE_SLOT: Final = _view("live_slot", metadata.tables["slot"].c)


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text, the names of its arguments in their order, and the values that the select itself sets."""

    text: str
    names: tuple[str, ...]
    constants: Mapping[str, object]


def _compiled(statement: Select[Any]) -> Compiled:
    compiled = statement.compile(dialect=_DIALECT)
    assert compiled.positiontup is not None
    return Compiled(str(compiled), tuple(compiled.positiontup), compiled.params)


_ID: Final = _EXECUTION.c.id
_JSON_COLUMNS: Final = ("parameters", "result", "metadata", "gates")
_RECORDED: Final = StoredExecution.model_fields.keys() - {*_JSON_COLUMNS, "status"} | {
    "error_type",
    "error_message",
}
_BEFORE_ID: Final = bindparam("before_id", type_=BigInteger)
_LIMIT: Final = bindparam("limit", type_=Integer)
_CANDIDATES_MAX: Final = bindparam("candidates_max", type_=Integer)


def _conditions(names: frozenset[str], execution: Table) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on `execution` or `current_execution`."""
    every = {
        "action_id": execution.c.action_id == bindparam("action_id"),
        "statuses": cast(execution.c.status, Text) == func.any(bindparam("statuses", type_=ARRAY(Text))),
        "concurrency_key": execution.c.concurrency_key == bindparam("concurrency_key"),
        "idempotency_key": execution.c.idempotency_key == bindparam("idempotency_key"),
        "priority": execution.c.priority == bindparam("priority", type_=Integer),
        "created_after": execution.c.created_at >= bindparam("created_after"),
        "created_before": execution.c.created_at < bindparam("created_before"),
        "completed_after": execution.c.completed_at >= bindparam("completed_after"),
        "completed_before": execution.c.completed_at < bindparam("completed_before"),
        "error": _error_contains(execution),
        "worker_id": execution.c.worker_id == bindparam("worker_id"),
        "metadata": _metadata_matches(execution),
        "scope": execution.c.action_id.in_(_in_scope()),
    }
    return [condition for name, condition in every.items() if name in names]


def _in_scope() -> Select[Any]:
    prefixes = bindparam("scope", type_=ARRAY(Text))
    return select(_ACTION.c.id).where(_ACTION.c.ref.op("^@")(func.any(prefixes)))


def _metadata_matches(execution: Table) -> ColumnElement[bool]:
    # As two arrays: the length of the statement does not depend on the request.
    keys, values = (bindparam(name, type_=ARRAY(Text)) for name in ("metadata", "metadata_values"))
    wanted = func.unnest(keys, values).table_valued("key", "value").render_derived()
    found = execution.c.metadata.op("->>")(wanted.c.key)
    return ~exists(select(wanted.c.key).where(found.is_distinct_from(wanted.c.value)))


def _error_contains(execution: Table) -> ColumnElement[bool]:
    # No pattern: every character of the text stands for itself.
    error = func.concat_ws(": ", execution.c.error_type, execution.c.error_message)
    wanted = func.lower(bindparam("error", type_=Text))
    return and_(execution.c.error_type.is_not(None), func.strpos(func.lower(error), wanted) > 0)


def _status(execution: Table) -> ColumnElement[str]:
    return cast(execution.c.status, Text).label("status")


def _stopping(execution: Table) -> ColumnElement[bool]:
    """Return whether an execution runs although it has been asked to stop, as `stopping_of` says."""
    second = literal_column("interval '1 second'", Interval)
    ends_at = execution.c.started_at + execution.c.timeout_seconds * second
    is_asked = or_(execution.c.cancel_requested_at.is_not(None), ends_at <= func.now())
    runs = and_(execution.c.started_at.is_not(None), execution.c.completed_at.is_(None))
    return func.coalesce(and_(runs, is_asked), false()).label("stopping")


@cache
def counted(names: frozenset[str]) -> Compiled:
    """Count the newest matching executions by status."""
    candidate = _candidate(select(_ID).where(*_of_action(names)).order_by(_ID.desc()))
    found = (
        select(_status(_CURRENT_EXECUTION), func.count().label("executions"))
        .join_from(candidate, _CURRENT_EXECUTION, candidate.c.id == _CURRENT_EXECUTION.c.id)
        .where(*_conditions(names, _CURRENT_EXECUTION))
        .group_by(_CURRENT_EXECUTION.c.status)
    )
    is_cut = select(
        cast(None, Text).label("status"),
        cast(func.count() >= _CANDIDATES_MAX, Integer).label("executions"),
    ).select_from(candidate)
    both = union_all(found, is_cut).subquery("both")
    return _compiled(select(both).order_by(both.c.status.asc().nulls_last()))


@cache
def listed(names: frozenset[str], *, is_live: bool, has_ended: bool) -> Compiled:
    """Select executions with their documents, newest first."""
    # No slot has the status of an execution that has ended.
    execution = _EXECUTION if has_ended else _CURRENT_EXECUTION
    if is_live:
        # They are found in the live tables, however long the history and the queues are.
        slots, delayed = select(_LIVE_SLOT.c.execution_id.label("id")), select(_DELAYED.c.execution_id)
        live = union(slots, delayed).subquery("live")
        candidates = select(live.c.id).where(live.c.id < _BEFORE_ID).order_by(live.c.id.desc())
    else:
        candidates = select(_ID).where(_ID < _BEFORE_ID, *_of_action(names)).order_by(_ID.desc())
    # Not materialized: candidates are read only as far as the page needs.
    candidate = _candidate(candidates).prefix_with("NOT MATERIALIZED", dialect="postgresql")
    texts = (cast(execution.c[name], Text).label(name) for name in _JSON_COLUMNS)
    recorded = (column for column in execution.c if column.name in _RECORDED)
    status = _status(execution), _stopping(execution)
    page = (
        select(*recorded, _ACTION.c.ref.label("action_ref"), *status, *texts)
        .join_from(candidate, execution, candidate.c.id == execution.c.id)
        .join(_ACTION, _ACTION.c.id == execution.c.action_id)
        .where(*_conditions(names, execution))
        .order_by(candidate.c.id.desc())
    )
    return _page(candidate, page, is_weighed=True)


@cache
def unfinished(names: frozenset[str]) -> Compiled:
    """Select executions that have not ended, newest first."""
    # They are found in the live tables, however long the history is.
    id_of_place = func.turnstile.id_of_place
    ranges = (
        func.turnstile.line_ranges(_CURRENT_QUEUE.c.head_id, _CURRENT_QUEUE.c.heads)
        .table_valued(column("first_place", BigInteger), column("last_place", BigInteger))
        .lateral("range")
    )
    # Waiting ones from the heads of the queues: before a head are the index entries of what was granted.
    waiting = (
        select(id_of_place(_WAITING.c.place).label("id"), _CURRENT_QUEUE.c.id.label("queue_id"))
        .select_from(_CURRENT_QUEUE)
        .join(ranges, true())
        .join(
            _WAITING,
            and_(
                _WAITING.c.line_id == _CURRENT_QUEUE.c.id,
                _WAITING.c.place.between(ranges.c.first_place, ranges.c.last_place),
            ),
        )
        .where(_CURRENT_QUEUE.c.depth > 0)
    )
    has_passed = _WAITING.c.queue_id.is_not(None)
    at_gates = select(id_of_place(_WAITING.c.place), _WAITING.c.queue_id).where(has_passed)
    held = select(_LIVE_SLOT.c.execution_id, _LIVE_SLOT.c.queue_id).where(_LIVE_SLOT.c.finished_at.is_(None))
    delayed = select(_DELAYED.c.execution_id, _DELAYED.c.queue_id)
    live = union_all(waiting, at_gates, held, delayed).subquery("live")
    candidates = select(live.c.id).where(live.c.id < _BEFORE_ID).order_by(live.c.id.desc())
    if "action_id" in names:
        queues = select(_ACTION_QUEUE.c.id).where(_ACTION_QUEUE.c.action_id == bindparam("action_id"))
        candidates = candidates.where(live.c.queue_id.in_(queues))
    candidate = _candidate(candidates)
    page = (
        select(_CURRENT_EXECUTION.c.id, _status(_CURRENT_EXECUTION))
        .join_from(candidate, _CURRENT_EXECUTION, candidate.c.id == _CURRENT_EXECUTION.c.id)
        .where(_CURRENT_EXECUTION.c.completed_at.is_(None), *_conditions(names, _CURRENT_EXECUTION))
        .order_by(_CURRENT_EXECUTION.c.id.desc())
    )
    return _page(candidate, page)


@cache
def ended(names: frozenset[str]) -> Compiled:
    """Select executions that have ended, oldest first."""
    after_id, up_to_id = (bindparam(name, type_=BigInteger) for name in ("after_id", "up_to_id"))
    between = after_id < _ID, up_to_id >= _ID
    candidate = _candidate(select(_ID).where(*between, *_of_action(names)).order_by(_ID))
    page = (
        select(_ID, _status(_EXECUTION))
        .join_from(candidate, _EXECUTION, candidate.c.id == _ID)
        .where(_EXECUTION.c.completed_at.is_not(None), *_conditions(names, _EXECUTION))
        .order_by(_ID)
    )
    if "retry_key" in names:
        not_made = text(query("not_made_under")).bindparams(
            bindparam("retry_key", type_=Text), generations=_GENERATIONS_MAX
        )
        page = page.where(or_(_EXECUTION.c.retry_of.is_(None), not_made))
    return _page(candidate, page, is_ascending=True)


def _of_action(names: frozenset[str]) -> list[ColumnElement[bool]]:
    return _conditions(names & {"action_id", "idempotency_key"}, _EXECUTION)


def _candidate(candidates: Select[Any]) -> CTE:
    return candidates.limit(_CANDIDATES_MAX).cte("candidate")


def _page(
    candidate: CTE, found: Select[Any], *, is_ascending: bool = False, is_weighed: bool = False
) -> Compiled:
    """Cut a page off what was found among the candidates.

    `next_id` of its first row is the id behind which the next page starts; null: nothing is left.
    `searched_until` is null unless the page ends because all candidates were read: then it is when the last
    one was created. All other columns of that row are null where the page is empty.
    """
    page = found.limit(_LIMIT + 1).cte("page")
    order = page.c.id.asc() if is_ascending else page.c.id.desc()
    last_of = func.max if is_ascending else func.min
    ranked = select(page, func.row_number().over(order_by=order).label("rank"))
    if is_weighed:
        parameters, *others = (func.coalesce(func.length(page.c[name]), 0) for name in _JSON_COLUMNS)
        length = sum(others, parameters)
        ranked = ranked.add_columns(func.sum(length).over(order_by=order).label("bytes"))
    rank = ranked.cte("ranked")
    rows = select(rank).where(rank.c.rank <= _LIMIT)
    if is_weighed:
        is_small = rank.c.bytes <= bindparam("bytes_max", type_=BigInteger)
        rows = rows.where(or_(rank.c.rank == 1, is_small))
    taken = rows.cte("taken")
    # Behind the last row taken, or behind the last candidate.
    last_candidate = case((func.count() >= _CANDIDATES_MAX, last_of(candidate.c.id)))
    next_id = case(
        (_count(page) > _count(taken), select(last_of(taken.c.id)).scalar_subquery()),
        else_=select(last_candidate).select_from(candidate).scalar_subquery(),
    )
    is_cut = _count(page) <= _count(taken)
    # Once: the candidates are counted for it.
    rest = select(next_id.label("next_id"), is_cut.label("is_cut")).cte("rest")
    rest = rest.prefix_with("MATERIALIZED", dialect="postgresql")
    last_created_at = select(_EXECUTION.c.created_at).where(rest.c.next_id == _ID, rest.c.is_cut)
    searched_until = last_created_at.scalar_subquery().label("searched_until")
    whole = select(rest.c.next_id, searched_until, taken).select_from(rest.outerjoin(taken, true()))
    return _compiled(whole.order_by(taken.c.id.asc() if is_ascending else taken.c.id.desc()))


def _count(rows: CTE) -> Any:
    return select(func.count()).select_from(rows).scalar_subquery()
