"""The selects of lists and bulk operations, with SQLAlchemy: one for each combination of conditions.

In: a filter, where a page starts. Out: SQL text and arguments for asyncpg. Imported at the first list: with
SQLAlchemy, this module takes a third of the time that an executor takes to start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from typing import cast as cast_type

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    or_,
    select,
    text,
    true,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlmodel import SQLModel

from turnstile.executor.history.filters import CANDIDATES_MAX, PAGE_BYTES_MAX, ExecutionFilter
from turnstile.executor.history.views import CurrentExecution, Execution, FirstGrant, Live, Unfinished
from turnstile.executor.sql import statements

_STATEMENTS: Final = statements("history/history.sql")
_GENERATIONS_MAX: Final = 100
_DIALECT: Final = PGDialect_asyncpg()  # type: ignore[no-untyped-call]

Statement = tuple[Any, ...]
"""SQL text, then its arguments."""


def _table(view: type[SQLModel]) -> Table:
    return cast_type("Table", vars(view)["__table__"])


CURRENT: Final = _table(CurrentExecution)
_EXECUTION: Final = _table(Execution)
_LIVE: Final = _table(Live)
_FIRST_GRANT: Final = _table(FirstGrant)
_UNFINISHED: Final = _table(Unfinished)

_JSON_COLUMNS: Final = ("parameters", "result", "metadata", "passages")
_LISTED: Final = [column for column in CURRENT.c if column.name not in (*_JSON_COLUMNS, "status")]
_AFTER_ID: Final = bindparam("after_id", type_=BigInteger)
_BEFORE_ID: Final = bindparam("before_id", type_=BigInteger)
_LIMIT: Final = bindparam("limit", type_=Integer)
_CANDIDATES: Final = bindparam("candidates_max", type_=Integer)


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text, the names of its arguments in their order, and the values that the select itself sets."""

    text: str
    names: tuple[str, ...]
    constants: Mapping[str, object]

    def bound(self, wanted: ExecutionFilter, **more: object) -> Statement:
        """Return the statement with its arguments."""
        bounds = {"candidates_max": CANDIDATES_MAX, "bytes_max": PAGE_BYTES_MAX}
        values = {**self.constants, **bounds, **wanted.conditions(), **more}
        values["metadata_values"] = wanted.metadata_values()
        return self.text, *(values[name] for name in self.names)


def listed_executions(
    wanted: ExecutionFilter, *, before_id: int, limit: int, after_id: int | None = None
) -> Statement:
    """Select executions with their documents: before an id, newest first, or after one, oldest first."""
    compiled = _listed(
        frozenset(wanted.conditions()), is_live=wanted.is_live, is_unfinished=wanted.is_unfinished,
        is_ascending=after_id is not None,
    )  # fmt: skip
    return compiled.bound(wanted, before_id=before_id, after_id=after_id or 0, limit=limit)


def unfinished_executions(wanted: ExecutionFilter, *, before_id: int, limit: int) -> Statement:
    """Select executions that have not ended, newest first, those before an id.

    A bulk cancel begins at the tail of a queue, so that its head is not started meanwhile.
    """
    compiled = _unfinished(frozenset(wanted.conditions()))
    return compiled.bound(wanted, before_id=before_id, limit=limit)


def ended_executions(
    wanted: ExecutionFilter, *, after_id: int, up_to_id: int, limit: int, not_made_under: str | None
) -> Statement:
    """Select executions that have ended, oldest first, so that retries keep the order of the first requests.

    What a bulk retry made under the idempotency key `not_made_under`, and retries of that, are left out: a
    repeated call must not retry its own results.
    """
    compiled = _ended(frozenset(wanted.conditions()), has_retry_key=not_made_under is not None)
    return compiled.bound(wanted, after_id=after_id, up_to_id=up_to_id, limit=limit, retry_key=not_made_under)


def counted_executions(wanted: ExecutionFilter) -> Statement:
    """Count the newest executions by status, among at most `CANDIDATES_MAX`.

    The last row has no status, and in place of a count whether there are more executions than were read (1).
    """
    return _counted(frozenset(wanted.conditions())).bound(wanted)


def _conditions(names: frozenset[str]) -> list[ColumnElement[bool]]:
    execution = CURRENT.c
    every = {
        "action_ref": execution.action_ref == bindparam("action_ref"),
        "statuses": cast(execution.status, Text) == func.any(bindparam("statuses", type_=ARRAY(Text))),
        "concurrency_key": execution.concurrency_key == bindparam("concurrency_key"),
        "idempotency_key": execution.idempotency_key == bindparam("idempotency_key"),
        "priority": execution.priority == bindparam("priority", type_=Integer),
        "created_after": execution.created_at >= bindparam("created_after"),
        "created_before": execution.created_at < bindparam("created_before"),
        "completed_after": execution.completed_at >= bindparam("completed_after"),
        "completed_before": execution.completed_at < bindparam("completed_before"),
        "error": _error_contains(),
        "worker_id": execution.worker_id == bindparam("worker_id"),
        "metadata": _metadata_matches(),
        "scope": execution.action_ref.op("^@")(func.any(bindparam("scope", type_=ARRAY(Text)))),
    }
    return [condition for name, condition in every.items() if name in names]


def _metadata_matches() -> ColumnElement[bool]:
    # As two arrays: the length of the statement does not depend on the request.
    keys, values = (bindparam(name, type_=ARRAY(Text)) for name in ("metadata", "metadata_values"))
    wanted = func.unnest(keys, values).table_valued("key", "value").render_derived()
    found = CURRENT.c.metadata.op("->>")(wanted.c.key)
    return ~exists(select(wanted.c.key).where(found.is_distinct_from(wanted.c.value)))


def _error_contains() -> ColumnElement[bool]:
    # No pattern: every character of the text stands for itself.
    error = func.concat_ws(": ", CURRENT.c.error_type, CURRENT.c.error_message)
    wanted = func.lower(bindparam("error", type_=Text))
    return and_(CURRENT.c.error_type.is_not(None), func.strpos(func.lower(error), wanted) > 0)


def _by_index(names: frozenset[str]) -> list[ColumnElement[bool]]:
    """Return the conditions that an index of the records answers: they choose the candidates."""
    every = {
        "action_ref": _EXECUTION.c.action_ref == bindparam("action_ref"),
        "idempotency_key": _EXECUTION.c.idempotency_key == bindparam("idempotency_key"),
    }
    return [condition for name, condition in every.items() if name in names]


@cache
def _counted(names: frozenset[str]) -> Compiled:
    candidate = _candidate(select(_EXECUTION.c.id).where(*_by_index(names)).order_by(_EXECUTION.c.id.desc()))
    found = (
        select(_status(), func.count().label("executions"))
        .join_from(candidate, CURRENT, candidate.c.id == CURRENT.c.id)
        .where(*_conditions(names))
        .group_by(CURRENT.c.status)
    )
    is_cut = select(
        cast(None, Text).label("status"), cast(func.count() >= _CANDIDATES, Integer).label("executions")
    ).select_from(candidate)
    both = union_all(found, is_cut).subquery("both")
    return _compiled(select(both).order_by(both.c.status.asc().nulls_last()))


@cache
def _listed(names: frozenset[str], *, is_live: bool, is_unfinished: bool, is_ascending: bool) -> Compiled:
    if is_live:
        # They are found in the live tables, however long the history and the queues are.
        live = union(select(_LIVE.c.id), select(_FIRST_GRANT.c.id)).subquery("live")
        source, candidates = live.c.id, select(live.c.id)
    elif is_unfinished:
        either = text(_STATEMENTS["unfinished_ids"]).bindparams(_AFTER_ID, _BEFORE_ID)
        found = either.columns(_EXECUTION.c.id).subquery("unfinished")
        # Distinct in the order of the keys, so a page reads only its part of the queues.
        source, candidates = found.c.id, select(found.c.id).distinct()
    else:
        source, candidates = _EXECUTION.c.id, select(_EXECUTION.c.id).where(*_by_index(names))
    if not is_unfinished:
        candidates = candidates.where(source > _AFTER_ID, source < _BEFORE_ID)
    candidates = candidates.order_by(source.asc() if is_ascending else source.desc())
    # Not materialized: candidates are read only as far as the page needs.
    candidate = _candidate(candidates).prefix_with("NOT MATERIALIZED", dialect="postgresql")
    texts = (cast(CURRENT.c[name], Text).label(name) for name in _JSON_COLUMNS)
    page = (
        select(*_LISTED, _status(), *texts, func.now().label("read_at"))
        .join_from(candidate, CURRENT, candidate.c.id == CURRENT.c.id)
        .where(*_conditions(names))
        .order_by(candidate.c.id.asc() if is_ascending else candidate.c.id.desc())
    )
    return _page(candidate, page, is_ascending=is_ascending, is_weighed=True)


@cache
def _unfinished(names: frozenset[str]) -> Compiled:
    # They are found in the live tables, however long the history is.
    candidates = select(_UNFINISHED.c.id).where(_UNFINISHED.c.id < _BEFORE_ID)
    if "action_ref" in names:
        candidates = candidates.where(_UNFINISHED.c.action_ref == bindparam("action_ref"))
    candidate = _candidate(candidates.order_by(_UNFINISHED.c.id.desc()))
    page = (
        select(CURRENT.c.id, _status())
        .join_from(candidate, CURRENT, candidate.c.id == CURRENT.c.id)
        .where(CURRENT.c.completed_at.is_(None), *_conditions(names))
        .order_by(CURRENT.c.id.desc())
    )
    return _page(candidate, page)


@cache
def _ended(names: frozenset[str], *, has_retry_key: bool) -> Compiled:
    after_id, up_to_id = (bindparam(name, type_=BigInteger) for name in ("after_id", "up_to_id"))
    between = after_id < _EXECUTION.c.id, up_to_id >= _EXECUTION.c.id
    candidate = _candidate(
        select(_EXECUTION.c.id).where(*between, *_by_index(names)).order_by(_EXECUTION.c.id)
    )
    page = (
        select(CURRENT.c.id, _status())
        .join_from(candidate, CURRENT, candidate.c.id == CURRENT.c.id)
        .where(CURRENT.c.completed_at.is_not(None), *_conditions(names))
        .order_by(CURRENT.c.id)
    )
    if has_retry_key:
        not_made = text(_STATEMENTS["not_made_under"]).bindparams(
            bindparam("retry_key", type_=Text), generations=_GENERATIONS_MAX
        )
        page = page.where(or_(CURRENT.c.retry_of.is_(None), not_made))
    return _page(candidate, page, is_ascending=True)


def _status() -> ColumnElement[str]:
    return cast(CURRENT.c.status, Text).label("status")


def _candidate(candidates: Select[Any]) -> CTE:
    return candidates.limit(_CANDIDATES).cte("candidate")


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
    last_candidate = case((func.count() >= _CANDIDATES, last_of(candidate.c.id)))
    next_id = case(
        (_count(page) > _count(taken), select(last_of(taken.c.id)).scalar_subquery()),
        else_=select(last_candidate).select_from(candidate).scalar_subquery(),
    )
    is_cut = _count(page) <= _count(taken)
    # Once: the candidates are counted for it.
    rest = select(next_id.label("next_id"), is_cut.label("is_cut")).cte("rest")
    rest = rest.prefix_with("MATERIALIZED", dialect="postgresql")
    last_created_at = select(_EXECUTION.c.created_at).where(rest.c.next_id == _EXECUTION.c.id, rest.c.is_cut)
    searched_until = last_created_at.scalar_subquery().label("searched_until")
    whole = select(rest.c.next_id, searched_until, taken).select_from(rest.outerjoin(taken, true()))
    return _compiled(whole.order_by(taken.c.id.asc() if is_ascending else taken.c.id.desc()))


def _count(rows: CTE) -> Any:
    return select(func.count()).select_from(rows).scalar_subquery()


def _compiled(statement: Select[Any]) -> Compiled:
    compiled = statement.compile(dialect=_DIALECT)
    assert compiled.positiontup is not None
    return Compiled(str(compiled), tuple(compiled.positiontup), compiled.params)
