"""The history of a world, in the tables that `stress.check` judges. Instants are true ones, in nanoseconds.

The tables of the database say what was admitted, granted and ended, at the instants of the commits; the
witness says what ran. Both are exact, so every order between them is.

After a failover the tables are those of the standby: what was committed meanwhile and lost is not in them.
What is known of it elsewhere, answers and runs, is left out, and nothing else (`Lost`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tests.proof.simulation.database import AttemptRecord, Commit
from tests.proof.simulation.runner import NS, number_of
from tests.proof.simulation.world import Outcome as World
from turnstile.common.domain.states import Status
from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.check.history import FOREIGN, History, history_of
from turnstile.stress.check.limits import ALWAYS, LimitPeriod, LimitTimeline
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    NONE,
    ORDER,
    RUN,
    Answer,
    LimitChange,
    Outcome,
    Recording,
    Table,
    empty,
    status_code,
)
from turnstile.stress.scenario import DurationMix, Load, Scenario

_AT_FIRST: Final = 1
"""The limit of a queue that is not said to have another one."""
_OUTCOMES: Final = {
    "": Outcome.OPEN, "ended": Outcome.ENDED, "reclaimed": Outcome.RECLAIMED,
    "returned": Outcome.RETURNED,
}  # fmt: skip


def commits_of(world: World) -> list[Commit]:
    """Return the turns that the database has at the end."""
    postgres = world.postgres
    return [each for each in postgres.commits if not (each.is_missed and postgres.has_failed_over)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a failover took away."""

    execution_ids: frozenset[int] = frozenset()
    """All executions of which a lost turn said anything."""
    numbers: frozenset[int] = frozenset()
    """Requests that were admitted in a lost turn, or were lost with their rows in the inbox."""


def lost_by_failover(world: World) -> Lost:
    """Return what was committed and not received by the standby that took over."""
    if not world.postgres.has_failed_over:
        return Lost()
    commits = [each for each in world.postgres.commits if each.is_missed]
    numbers = {number_of(row.parameters) for each in commits for row in each.turn.admitted}
    (failover,) = (fault for fault in world.story.faults if fault.kind == "failover")
    missed = range(round(failover.at * NS), round((failover.at + failover.seconds) * NS) + 1)
    for number, order in world.clients.orders.items():
        if order.plan.submitter == world.story.inbox_submitter and order.confirmed_at in missed:
            numbers.add(number)
    return Lost(execution_ids=frozenset(_ids_of(commits)), numbers=frozenset(numbers))


def recording_of(world: World) -> Recording:
    """Return what was observed."""
    story = world.story
    load = Load(
        executions=len(story.requests), mix=DurationMix.always(0.01), actions=len(story.actions),
        keys=story.keys, submitters=story.submitters,
    )  # fmt: skip
    scenario = Scenario(name=f"seed-{story.seed}", title="", load=load, limit=_AT_FIRST)
    lost = lost_by_failover(world)
    workers: dict[str, int] = {}
    attempts = _attempts(world, workers)
    return Recording(
        scenario=scenario, began_at=0, ended_at=round(world.ended_at * NS), orders=_orders(world, lost),
        executions=_executions(world), attempts=attempts, runs=_runs(world, lost), workers=tuple(workers),
        faults=tuple(world.injected), limit_changes=tuple(_limit_changes(world)),
        worker_capacity=max(sum(story.workers), 1),
    )  # fmt: skip


def history(world: World, recording: Recording) -> History:
    """Return it as the rules read it, with the limit of each action from its beginning."""
    changed: dict[int, tuple[LimitPeriod, ...]] = {}
    for number in range(len(world.story.actions)):
        own = [change for change in recording.limit_changes if change.action == number]
        numbers = [UNLIMITED if change.limit is None else change.limit for change in own]
        if numbers == [_AT_FIRST]:
            continue
        sinces = [ALWAYS, *(change.asked_at for change in own[1:])]
        untils = [*(change.answered_at for change in own[1:]), NEVER]
        changed[number] = tuple(map(LimitPeriod, numbers, sinces, untils))
    limits = LimitTimeline(at_first=_AT_FIRST, keys=max(world.story.keys, 1), changed=changed)
    return replace(history_of(recording), limits=limits, is_changing=False, flawless=False)


def _limit_changes(world: World) -> list[LimitChange]:
    """Return all changes; the first one of each action is its limit at the beginning."""
    changes = [
        LimitChange(action=number, limit=action.limit, asked_at=-NS, answered_at=-NS)
        for number, action in enumerate(world.story.actions)
    ]
    if world.postgres.has_failed_over:
        # An answered change may be lost, so the kept turns say what was in force.
        return changes + list(_committed_changes(world))
    changes += sorted(
        [*world.clients.limit_changes, *world.clients.open_changes], key=lambda change: change.asked_at
    )
    return changes


def _committed_changes(world: World) -> Iterator[LimitChange]:
    numbers = {action.ref: number for number, action in enumerate(world.story.actions)}
    for at, turn, _ in commits_of(world):
        for row in turn.definitions:
            if row.kind == "action" and row.name in numbers and row.body is not None:
                limit = 0 if row.body["paused"] else row.body["max_concurrent"]
                yield LimitChange(action=numbers[row.name], limit=limit, asked_at=at, answered_at=at)


def _ids_of(commits: Iterable[Commit]) -> set[int]:
    """Return the executions of which these turns say anything."""
    found: set[int] = set()
    for _, turn, _ in commits:
        for rows in (turn.admitted, turn.ended, turn.live, turn.waiting):
            found.update(row.id for row in rows)
        found.update(over.execution_id for over in turn.attempts)
        for granted in turn.granted:
            found.update(granted.execution_ids)
        found.update(turn.live_over)
        found.update(turn.waiting_over)
    return found


def _queue(world: World, action: int, key: int) -> int:
    return action * max(world.story.keys, 1) + key


def _table(dtype: "np.dtype[Any]", rows: list[tuple[Any, ...]]) -> Table:
    return np.array(rows, dtype) if rows else empty(dtype, 0)


def _orders(world: World, lost: Lost) -> Table:
    # Requests are counted from 0 in the order of sending, which is that of their numbers.
    rows: list[tuple[Any, ...]] = []
    for order in world.clients.orders.values():
        plan = order.plan
        if plan.number in lost.numbers:
            # It may be admitted once more or never, and at any time.
            queue = _queue(world, plan.action, plan.key)
            rows.append((plan.submitter, queue, 0, order.sent_at, NEVER, NEVER, NONE, Answer.NONE, 2))
            continue
        rows.append(
            (
                plan.submitter, _queue(world, plan.action, plan.key), 0, order.sent_at, order.confirmed_at,
                order.answered_at, order.execution_id, order.answer, order.sendings,
            )
        )  # fmt: skip
    return _table(ORDER, rows)


def numbers_of(world: World) -> dict[int, int]:
    """Return for each execution the place of its request among those of the story."""
    places = {plan.number: place for place, plan in enumerate(world.story.requests)}
    found = {}
    for execution_id, row in world.postgres.tables.admitted.items():
        found[execution_id] = places.get(number_of(row.parameters), FOREIGN)
    return found


def _executions(world: World) -> Table:
    tables, numbers = world.postgres.tables, numbers_of(world)
    actions = {action.ref: number for number, action in enumerate(world.story.actions)}
    rows = []
    for execution_id in sorted(tables.admitted):
        row, ended = tables.admitted[execution_id], tables.ended.get(execution_id)
        if row.action_ref not in actions:
            # Of a schedule, which has rules of its own.
            continue
        status: Status = row.status if ended is None else ended.status
        if ended is None and execution_id in tables.live:
            status = tables.live[execution_id].status
        attempts = tables.attempts.get(execution_id)
        rows.append(
            (
                execution_id, numbers[execution_id],
                _queue(world, actions[row.action_ref], int(row.key or 0)), status_code(status),
                len(attempts) if attempts else 0, tables.created_at[execution_id],
                tables.completed_at.get(execution_id, NEVER),
            )
        )  # fmt: skip
    return _table(EXECUTION, rows)


def _attempts(world: World, workers: dict[str, int]) -> Table:
    tables = world.postgres.tables
    actions = {action.ref: number for number, action in enumerate(world.story.actions)}
    rows = []
    for execution_id, own in sorted(tables.attempts.items()):
        row = tables.admitted[execution_id]
        queue = _queue(world, actions[row.action_ref], int(row.key or 0))
        ended = tables.ended.get(execution_id)
        is_lost = ended is not None and ended.status is Status.ABANDONED
        for each in own:
            # The worker of what was abandoned was lost, as that of what was reclaimed.
            outcome = Outcome.RECLAIMED if is_lost and each is own[-1] else _outcome(each)
            worker = workers.setdefault(each.worker_id, len(workers))
            # No claim is stored: what was granted may have started.
            rows.append(
                (
                    execution_id, each.attempt, queue, min(each.waiting_since, each.granted_at),
                    each.granted_at, each.granted_at, each.ended_at,
                    outcome, worker,
                )
            )  # fmt: skip
    return _table(ATTEMPT, rows)


def _outcome(record: AttemptRecord) -> Outcome:
    return _OUTCOMES.get(record.outcome, Outcome.RETRIED)


def _runs(world: World, lost: Lost) -> Table:
    plans = {plan.number: plan for plan in world.story.requests}
    places = {plan.number: place for place, plan in enumerate(world.story.requests)}
    rows = []
    for each in world.witness.records:
        if each.execution_id in lost.execution_ids:
            continue
        plan = plans[each.number]
        rows.append(
            (
                places[each.number], each.execution_id, each.attempt, _queue(world, plan.action, plan.key),
                each.process, each.started_at, each.stopped_at, each.end,
            )
        )  # fmt: skip
    return _table(RUN, rows)
