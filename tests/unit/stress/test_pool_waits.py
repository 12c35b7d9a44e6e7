"""Since when executions certainly wait at the pool: never earlier than in a simulated installation.

The simulation decides as the services do: a queue has as many slots as its limit, executions that could use
one take worker slots in the turns of their actions, and a slot is free once the end of its run is committed,
which takes a random time.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from tests.unit.stress.histories import Life, at, hand_made
from turnstile.stress.check.pool_waits import Stay, starts_of, waits
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import (
    NEVER,
    GateRecords,
    LimitChange,
    Outcome,
    RecordedChange,
    RecordedDefinition,
    Recording,
)
from turnstile.stress.trace import action_ref

ACTIONS: Final = 3
KEYS: Final = 2
PLACES: Final = 3
TICK_MS: Final = 20
SETTLING_MS: Final = 60
CHANGING_MS: Final = 80
"""How long a change may take until it is in force."""
WEIGHTS: Final = {action_ref(0): 3}
EVERY: Final = 3_600_000
"""Divisible by the weights."""


def stay(
    execution_id: int, since: int, granted: int = NEVER, settled: int = NEVER, priority: int = 3
) -> Stay:
    return Stay(priority, execution_id, True, since, granted, granted != NEVER, settled)


@pytest.mark.parametrize(
    ("stays", "limits", "found"),
    [
        ([stay(1, 0, 1, 5), stay(2, 0, 9)], [(0, 1)], [0, 5]),
        ([stay(1, 0, 1, 5), stay(2, 0, 9)], [(0, 2)], [0, 0]),
        ([stay(1, 0, 1, 5), stay(2, 0, 4)], [(0, 1)], [0, NEVER]),
        ([stay(1, 0, 1, 5), stay(2, 0)], [(0, 1)], [0, 5]),
        ([stay(1, 0), stay(2, 0)], [(0, 1)], [0, NEVER]),
        ([stay(1, 0), stay(2, 0)], [(0, 1), (7, 2)], [0, 7]),
        ([stay(1, 0)], [(0, 1), (3, 0), (7, 1)], [7]),
        ([stay(1, 0, 8), stay(2, 3, 6, 9, priority=1)], [(0, 1)], [NEVER, 3]),
        ([stay(1, 0, 9), stay(2, 3, 6, 8, priority=1)], [(0, 1)], [8, 3]),
        ([stay(1, 5), stay(2, 5, 6, 8, priority=5)], [(0, 1)], [8, NEVER]),
        ([stay(1, 0), stay(2, 3, 6, 8, priority=5)], [(0, 1)], [0, NEVER]),
        (
            [stay(1, 0, 1, 4), stay(1, 3, 9, 11)._replace(is_first=False), stay(2, 0, 12)],
            [(0, 1)],
            [0, 4, 11],
        ),
        ([stay(1, 0, 8, 10)._replace(is_first=False), stay(2, 0, 5, 9)], [(0, 1)], [NEVER, NEVER]),
        (
            [stay(1, 0, 7)._replace(is_granted=False), stay(2, 0, 5, 9), stay(3, 0)],
            [(0, 1)],
            [NEVER, NEVER, 9],
        ),
        ([stay(1, 0, 2), stay(2, 0, 3, 4), stay(3, 0, 5, 6)], [(0, 2**63 - 1)], [0, 0, 0]),
    ],
)
def test_as_many_wait_at_the_pool_as_slots_are_certainly_free(
    stays: Sequence[Stay], limits: list[tuple[int, int]], found: list[int]
) -> None:
    assert waits(stays, limits, tick_ns=2) == found


GATES: Final = GateRecords(
    names=(),
    actions={
        action_ref(0): RecordedDefinition(
            now={"max_concurrent": 2},
            changes=(RecordedChange(at=at(500), old={"max_concurrent": 1}, new={"max_concurrent": 2}),),
        )
    },
    resources={},
    changed=1,
    settling_ns=at(500) - at(0),
)


@pytest.mark.parametrize(
    "change",
    [
        {"gates": GATES, "limit": None},
        {"limit_changes": (LimitChange(action=0, limit=2, asked_at=at(500), answered_at=at(1_000)),)},
    ],
    ids=["definition", "limit"],
)
def test_a_higher_limit_counts_from_one_tick_after_its_change(change: dict[str, Any]) -> None:
    lives = Life(id=1, since=0, granted=1, ended=4_000), Life(id=2, since=0, granted=4_100, ended=4_200)
    recording = hand_made(*lives, tick_seconds=TICK_MS / 1000, **change)
    assert starts_of(recording)[1].waits_from == at(1_000 + TICK_MS)


def test_of_an_execution_that_returns_no_wait_is_known() -> None:
    recording = hand_made(
        Life(id=1, since=0, granted=500, ended=600, outcome=Outcome.RECLAIMED),
        Life(id=1, since=600, granted=5_000, ended=6_000, attempt=2),
        tick_seconds=TICK_MS / 1000,
    )
    assert [start.waits_from for start in starts_of(recording)] == [at(TICK_MS), NEVER]


@dataclass(slots=True, eq=False)
class Simulated:
    """One execution; instants in milliseconds."""

    id: int
    queue: int
    priority: int
    since: int
    waits_from: int | None = None
    """Since when it has waited for nothing but a worker slot."""
    granted: int | None = None
    ended: int | None = None
    settled: int | None = None

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.id


@dataclass
class Simulation:
    """A pool of worker slots that are always scarce."""

    chance: random.Random
    limit: int
    changes: dict[int, int]
    """The limit from each of these instants on."""
    tags: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    virtual_times: Counter[int] = field(default_factory=Counter)

    def run(self) -> list[Simulated]:
        self.every: list[Simulated] = []
        for now in range(6_000):
            self.limit = self.changes.get(now - CHANGING_MS - TICK_MS + 1, self.limit)
            if now < 2_000 and self.chance.random() < 0.08:
                queue, priority = self.chance.randrange(ACTIONS * KEYS), self.chance.choice((3, 3, 3, 1, 4))
                self.every.append(Simulated(len(self.every) + 1, queue, priority, now))
            while (first := self._next(now)) is not None:
                first.granted = now
                first.ended = now + self.chance.randint(20, 90)
                first.settled = first.ended + self.chance.randint(0, SETTLING_MS - 1)
        return self.every

    def _next(self, now: int) -> Simulated | None:
        held = [each for each in self.every if each.granted is not None and (each.settled or 0) > now]
        at_pool = list(self._at_pool(Counter(each.queue for each in held)))
        for each in self.every:
            if each.granted is None:
                each.waits_from = (each.waits_from or now) if each in at_pool else None
        if len(held) >= PLACES or not at_pool:
            return None
        first = min(at_pool, key=lambda each: (each.priority, self._tag(each), each.id))
        flow = first.queue // KEYS, first.priority
        self.virtual_times[first.priority] = self._tag(first)
        self.tags[flow] = self._tag(first) + EVERY // WEIGHTS.get(action_ref(flow[0]), 1)
        return first

    def _at_pool(self, held: Counter[int]) -> Iterator[Simulated]:
        for queue in range(ACTIONS * KEYS):
            waiting = sorted(
                (each for each in self.every if each.queue == queue and each.granted is None),
                key=lambda each: each.rank,
            )
            yield from waiting[: max(self.limit - held[queue], 0)]

    def _tag(self, each: Simulated) -> int:
        return max(self.tags[each.queue // KEYS, each.priority], self.virtual_times[each.priority])


def recorded(every: Sequence[Simulated], limit: int, changes: dict[int, int]) -> Recording:
    """Return what the installation and the submitters have stored of it."""
    limits = [limit, *changes.values()]
    definition: dict[str, Any] = {"max_concurrent_total": None, "paused": False, "uses": []}
    plain = RecordedDefinition(
        now=definition | {"max_concurrent": limits[-1]},
        changes=tuple(
            RecordedChange(at=at(each), old={"max_concurrent": old}, new={"max_concurrent": new})
            for each, old, new in zip(changes, limits, limits[1:], strict=False)
        ),
    )
    recording = hand_made(
        *(Life(id=e.id, since=e.since, granted=e.granted, ended=e.ended, queue=e.queue) for e in every),
        limit=None,
        actions=ACTIONS,
        keys=KEYS,
        worker_capacity=PLACES,
        tick_seconds=TICK_MS / 1000,
        idle_allowed_seconds=SETTLING_MS / 1000,
        pool=RecordedDefinition(now={"order": "fair", "weights": WEIGHTS, "paused": False}, changes=()),
        gates=GateRecords(
            names=(),
            actions={action_ref(number): plain for number in range(ACTIONS)},
            resources={},
            changed=len(changes),
            settling_ns=at(CHANGING_MS) - at(0),
        ),
    )
    load = replace(recording.scenario.load, priorities=tuple(each.priority for each in every))
    return replace(recording, scenario=replace(recording.scenario, load=load))


def test_nothing_is_found_to_wait_before_it_does_and_no_rule_is_broken() -> None:
    found = 0
    checked: Counter[Rule] = Counter()
    for seed in range(2):
        limit, changes = 2 + seed % 2, {600: 1, 1_500: 3}
        every = Simulation(random.Random(seed), limit, changes).run()
        recording = recorded(every, limit, changes)
        for start in starts_of(recording):
            if start.waits_from != NEVER:
                since = every[start.execution_id - 1].waits_from
                assert since is not None
                assert at(since) <= start.waits_from
                found += 1
        verdict = check_recording(recording)
        assert not any(finding.broken for finding in verdict.findings if finding.rule in _OF_POOLS)
        checked.update({each.rule: each.checked for each in verdict.findings if each.rule in _OF_POOLS})
    assert found > 100
    assert min(checked[rule] for rule in _OF_POOLS) > 50, checked


_OF_POOLS: Final = (Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY)
