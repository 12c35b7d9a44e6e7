"""What the committed turns say of gates: the passages that `stress.check.passages` judges.

In: the turns that a database kept, in their order. A turn is one instant, that of its commit: everything in
it was decided at once. Out: for each time that an execution entered its queue, the gates that it passed
then, and since when it stood at each of them. The rows say who passed when; who stood where follows from
them, and is said only of what is certain:

- In its queue an execution stands from its arrival or return on.
- At the total stands the first one of each queue that has a free slot, while the action is not paused.
- At the first resource stands the next one of an action whose total and rate let it start. Between the keys
  of a fair total that next one is known only if all but one of them have none.
- At a later resource stands what holds the units of the earlier ones.
- At the pool stands the next one of an action without resources: it waits for nothing but a worker slot.

All workers serve all actions here, so the exception for what no worker can take never applies. Where units
were given back in a turn, everything stands anew from that turn on.

A queue may hold more than its limit at one worker, if its action may have runs (P1): what workers start of
it is judged elsewhere (`starts`).
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.proof.simulation.database import Commit
from tests.proof.simulation.story import POOL, ActionPlan, Story
from turnstile.common.domain.states import Status
from turnstile.executor.leader.records import LiveRow
from turnstile.stress.check.definitions import DefinitionHistory, Definitions
from turnstile.stress.check.gates import RUN_MAX
from turnstile.stress.check.passages import (
    QUEUE,
    TOTAL,
    Broken,
    GateHistory,
    Guarantee,
    Passer,
    Stay,
    check_passages,
)
from turnstile.stress.recording import NEVER

_RESOURCE: Final = "resource "
_POOL: Final = f"pool {POOL}"
"""The pool is judged as a resource without a capacity that every execution acquires last."""


_OF_QUEUES: Final = {Guarantee.ORDER: "P2"}
_OF_GATES: Final = {each: each.value for each in (Guarantee.UNITS, Guarantee.ORDER, Guarantee.FAIRNESS)}
_OF_STARTS: Final = {Guarantee.RATE: Guarantee.RATE.value}


def check_gates(story: Story, commits: Sequence[Commit]) -> Iterator[tuple[str, Broken]]:
    """Yield the promises that the turns break: P1 and P2 at queues, P11, P12 and P14 at others, P13."""
    replay = _Replay(story)
    for commit in commits:
        replay.follow(commit)
    yield from (("P1", each) for each in replay.broken)
    for passers, promises in (
        (replay.passers(lambda gate: gate == QUEUE), _OF_QUEUES),
        (replay.passers(lambda gate: gate != QUEUE), _OF_GATES),
        (replay.starts, _OF_STARTS),
    ):
        broken = check_passages(GateHistory(passers=passers, definitions=replay.definitions())).broken
        yield from ((promises[each.rule], each) for each in broken if each.rule in promises)


@dataclass(slots=True, eq=False)
class _Life:
    """An execution from its arrival in its queue to the release of what it acquired."""

    id: int
    action: "_Action"
    key: str
    priority: int
    arrived_at: int
    stands: dict[str, int] = field(default_factory=dict)
    """Gates where it stands at the end of a turn, and since when."""
    stays: list[Stay] = field(default_factory=list)
    is_granted: bool = False
    worker_id: str = ""
    released_at: int = NEVER

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.id


@dataclass(slots=True)
class _Queue:
    waiting: dict[int, _Life] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)
    """Priorities and ids, the first on top, and some that have left."""
    held: int = 0
    at: Counter[str] = field(default_factory=Counter)
    """How many of these each worker has; none: they have no worker yet."""

    def head(self) -> _Life | None:
        while self.order and self.order[0][1] not in self.waiting:
            heapq.heappop(self.order)
        return self.waiting[self.order[0][1]] if self.order else None


class _Action:
    """An action: its definitions, its queues, and what is held of its limits."""

    def __init__(self, plan: ActionPlan, *, has_one_crew: bool) -> None:
        body = plan.body(limit=plan.limit)
        self.ref = plan.ref
        self.body: Mapping[str, Any] = body
        self.versions = [(0, _flat(body))]
        uses = {use["resource"]: use["units"] for use in body.get("uses", ())}
        # All resources have the same rank.
        self.route = [QUEUE, *([TOTAL] if "max_concurrent_total" in body else ())]
        self.resources = [_RESOURCE + name for name in sorted(uses)]
        self.units = {_RESOURCE + name: units for name, units in uses.items()}
        self.gates = [*self.route, *self.resources, _RESOURCE + _POOL]
        self.has_one_crew = has_one_crew
        self.queues: dict[str, _Queue] = {}
        self.held = 0
        self.holding: dict[int, _Life] = {}
        self.starts: deque[int] = deque()
        """Microseconds of the latest grants."""

    def define(self, at: int, body: Mapping[str, Any]) -> None:
        self.body = body
        self.versions.append((at, _flat(body)))

    @property
    def may_have_runs(self) -> bool:
        """Whether nothing but its queue and the pool keeps it waiting, and a second start is no fault."""
        body = self.body
        is_plain = (
            body.get("max_concurrent_total") is None and not self.resources and body.get("rate") is None
        )
        may_repeat = body.get("on_worker_lost", "requeue") == "requeue" and body.get("max_reclaims", 1) > 0
        return is_plain and may_repeat and body.get("runs", True)

    def heads(self) -> list[_Life]:
        """Return the first of each queue that has a free slot."""
        limit = self.body["max_concurrent"]
        if self.body["paused"]:
            return []
        found = (queue.head() for queue in self.queues.values() if limit is None or queue.held < limit)
        return [life for life in found if life is not None]

    def next(self, heads: Sequence[_Life], now: int) -> _Life | None:
        """Return what certainly starts next, if total and rate let it."""
        total, rate = self.body.get("max_concurrent_total"), self.body.get("rate")
        if not heads or (total is not None and self.held >= total):
            return None
        if rate is not None:
            span = round(rate["per_seconds"] * 1e6)
            while self.starts and now >= self.starts[0] + span:
                self.starts.popleft()
            if len(self.starts) + len(self.holding) >= rate["starts"]:
                return None
        if total is not None and self.body.get("order") == "fair":
            first = min(life.priority for life in heads)
            heads = [life for life in heads if life.priority == first]
            return heads[0] if len(heads) == 1 else None
        return min(heads, key=lambda life: life.rank)

    def standing(self, now: int) -> Iterator[tuple[_Life, str]]:
        """Yield who stands where at the end of a turn, without the queues."""
        heads = self.heads()
        if TOTAL in self.route:
            yield from ((life, TOTAL) for life in heads)
        following = self.next(heads, now)
        if not self.has_one_crew:
            return
        if following is not None:
            yield following, self.resources[0] if self.resources else _RESOURCE + _POOL
        for life in self.holding.values():
            yield life, self.gates[len(life.stays)]


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition as `stress.check` knows it; the pool is the last resource."""
    flat = {name: value for name, value in body.items() if name not in ("rate", "retry")}
    uses = [{"weight": 1, **use} for use in body.get("uses", ())]
    flat["uses"] = [*uses, {"resource": _POOL, "units": 1, "weight": 1}]
    if body.get("rate") is not None:
        flat |= {"rate.starts": body["rate"]["starts"], "rate.per": body["rate"]["per_seconds"]}
    return flat


class _Replay:
    """Follows the turns."""

    def __init__(self, story: Story) -> None:
        self.story = story
        has_one_crew = all(
            each.fields.get("pool", POOL) == POOL and not each.fields.get("needs_code")
            for each in story.actions
        )
        self.actions = {each.ref: _Action(each, has_one_crew=has_one_crew) for each in story.actions}
        self.lives: list[_Life] = []
        self.starts: list[Passer] = []
        """Each grant by the clock of the leaders."""
        self.broken: list[Broken] = []
        """Grants beyond the limit of a queue that are in no run."""
        self._present: dict[int, _Life] = {}
        """By execution: where it is now, unless it is delayed."""
        self._requests: dict[int, tuple[_Action, str, int]] = {}
        self._standing: dict[_Life, None] = {}

    def passers(self, is_asked: Callable[[str], bool]) -> list[Passer]:
        """Return what passed some of these gates, and when."""
        return [
            Passer(
                execution_id=life.id, action=life.action.ref, key=life.key, priority=life.priority,
                created_at=stays[0].arrived_at, completed_at=life.released_at, attempt=1, stays=stays,
            )
            for life in self.lives
            if (stays := tuple(stay for stay in life.stays if is_asked(stay.gate)))
        ]  # fmt: skip

    def definitions(self) -> Definitions:
        resources = {
            each.name: DefinitionHistory([(0, {"weight": 1, **each.body})]) for each in self.story.resources
        }
        resources[_POOL] = DefinitionHistory([(0, {"order": "fair"})])
        actions = {ref: DefinitionHistory(action.versions) for ref, action in self.actions.items()}
        return Definitions(actions=actions, resources=resources, settling_ns=0)

    def follow(self, commit: Commit) -> None:
        """Follow one turn: what ended or returned, what arrived, then who passed."""
        at, turn, _ = commit
        if not turn.at:
            return
        for definition in turn.definitions:
            if (
                definition.kind == "action"
                and definition.name in self.actions
                and definition.body is not None
            ):
                self.actions[definition.name].define(at, definition.body)
        ended = {row.id for row in turn.ended}
        living = {row.id: row for row in turn.live}
        for over in turn.attempts:
            self._release(over.execution_id, at)
            if over.execution_id not in ended and not _is_delayed(living.get(over.execution_id)):
                self._arrive(over.execution_id, at)
        for row in turn.ended:
            self._release(row.id, at)
        for admitted in turn.admitted:
            action = self.actions[admitted.action_ref]
            self._requests[admitted.id] = action, admitted.key, admitted.priority
            if admitted.status is Status.QUEUED and admitted.id not in ended:
                self._arrive(admitted.id, at)
        gave_back = False
        for live in turn.live:
            gave_back |= self._live(live, at)
        lives = [
            self._grant(execution_id, granted.worker_id, at, turn.at)
            for granted in turn.granted
            for execution_id in granted.execution_ids
        ]
        for life in lives:
            self._check_limit(life, at)
        self._stand(at, round(turn.at * 1e6), anew=gave_back)

    def _live(self, row: LiveRow, at: int) -> bool:
        """Follow what a row says of an execution after the turn; True: it may have given units back."""
        life = self._present.get(row.id)
        if row.status is Status.DELAYED:
            return False
        if life is None:
            # Its delay is over.
            self._arrive(row.id, at)
            return self._live(row, at) if row.is_holding else False
        if row.is_holding:
            if not life.stays:
                self._pass(life, len(life.action.route), at)
                life.action.holding[life.id] = life
            self._pass(life, len(life.action.route) + len(row.held), at)
        elif row.status is Status.QUEUED:
            if life.id in life.action.holding:
                self._release(row.id, at)
                self._arrive(row.id, at)
            # It may have acquired units and given them back in this very turn.
            return len(life.action.resources) > 1
        return False

    def _arrive(self, execution_id: int, at: int) -> None:
        action, key, priority = self._requests[execution_id]
        life = self._present[execution_id] = _Life(execution_id, action, key, priority, at)
        self.lives.append(life)
        queue = action.queues.setdefault(key, _Queue())
        queue.waiting[execution_id] = life
        heapq.heappush(queue.order, life.rank)

    def _release(self, execution_id: int, at: int) -> None:
        life = self._present.pop(execution_id, None)
        if life is None:
            return
        life.released_at = at
        queue = life.action.queues[life.key]
        if queue.waiting.pop(execution_id, None) is None:
            queue.held -= 1
            queue.at[life.worker_id] -= 1
            life.action.held -= 1
            life.action.holding.pop(execution_id, None)

    def _pass(self, life: _Life, count: int, at: int) -> None:
        """Let it pass the first gates of its route, as far as it has not."""
        action = life.action
        queue = action.queues[life.key]
        if queue.waiting.pop(life.id, None) is not None:
            queue.held += 1
            queue.at[""] += 1
            action.held += 1
            life.stands[QUEUE] = life.arrived_at
            self._precede(life)
        for gate in action.gates[len(life.stays) : count]:
            arrived_at = life.stands.get(gate, at)
            life.stays.append(Stay(gate, action.units.get(gate, 1), arrived_at, at))

    def _precede(self, life: _Life) -> None:
        """At a fair total what arrived later may precede what stood first there, of another key."""
        action = life.action
        if TOTAL not in action.route or action.body.get("order") != "fair":
            return
        for other in self._standing:
            if other.action is action and other.key != life.key and other.id not in action.holding:
                other.stands = {gate: since for gate, since in other.stands.items() if gate == TOTAL}

    def _grant(self, execution_id: int, worker_id: str, at: int, now: float) -> _Life:
        life = self._present[execution_id]
        action = life.action
        self._pass(life, len(action.gates), at)
        queue = action.queues[life.key]
        queue.at[life.worker_id] -= 1
        queue.at[worker_id] += 1
        life.worker_id = worker_id
        life.is_granted = True
        action.holding.pop(execution_id, None)
        micros = round(now * 1e6)
        action.starts.append(micros)
        self.starts.append(
            Passer(
                execution_id=execution_id, action=action.ref, key=life.key, priority=life.priority,
                created_at=0, completed_at=NEVER, attempt=1,
                stays=(Stay(QUEUE, 1, 1000 * micros, 1000 * micros),),
            )
        )  # fmt: skip
        return life

    def _check_limit(self, life: _Life, at: int) -> None:
        """P1: after a turn that granted some of it, a queue fits its limit, or all of it is in a run."""
        queue, limit = life.action.queues[life.key], life.action.body["max_concurrent"]
        if limit is None or queue.held <= limit:
            return
        is_at_one = queue.at[life.worker_id] == queue.held
        if not (is_at_one and life.action.may_have_runs and limit > 0 and queue.held <= limit + RUN_MAX):
            workers = sorted(worker or "none" for worker, count in queue.at.items() if count)
            what = f"{queue.held} were held after its grant, at {workers}, the limit was {limit}"
            self.broken.append(
                Broken(Guarantee.UNITS, f"{QUEUE} {life.action.ref} {life.key}", at, what, life.id)
            )

    def _stand(self, at: int, now: int, *, anew: bool) -> None:
        """Note who stands where after a turn, and since when."""
        before = {_flow_at(gate, life) for life in self._standing for gate in life.stands}
        found: dict[_Life, dict[str, int]] = {}
        for action in self.actions.values():
            for life, gate in action.standing(now):
                # A flow that is new at a gate was not there while this turn decided.
                arrived_at = at if _flow_at(gate, life) in before and not anew else at + 1
                since = arrived_at if anew else life.stands.get(gate, arrived_at)
                found.setdefault(life, {})[gate] = since
        for life in self._standing.keys() - found.keys():
            life.stands = {}
        for life, stands in found.items():
            life.stands = stands
        self._standing = dict.fromkeys(found)


def _flow_at(gate: str, life: _Life) -> tuple[str, str, str]:
    return gate, life.action.ref, life.key if gate == TOTAL else ""


def _is_delayed(row: LiveRow | None) -> bool:
    return row is not None and row.status is Status.DELAYED


def ids_of(commits: Iterable[Commit]) -> set[int]:
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
