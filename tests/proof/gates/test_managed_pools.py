"""Weights, order and pause of a pool: the statements on random walks, checked by the rules of the model.

Each operation runs on a database and on the model, which lets pass at the pool what the database has granted.
The checker of the explorer then checks the step (P11, P12, P14) and the state after it (P7): without the
watchdog, so that no start depends on a repair. The walks end executions, hand them back, cancel them, pause
the pool, and change its order, or its weights alone. After a change of the weights the tags stay, so an
action may be behind by what one of its executions cost before.
"""

import random
from collections import defaultdict
from typing import Any, Final

import pytest

from tests.integration.protocol.test_pool import agrees, drop_workers, finish, refresh
from tests.proof.gates.definitions import GRANTED, Action, Pool, System, Worker
from tests.proof.gates.explorer import Configuration, apply
from tests.proof.gates.model import Execution, Gates, Table
from tests.proof.gates.rules import Checker, Event
from tests.proof.gates.walks import rolled_back
from tests.support.protocol import WORKER, Protocol, accepted, connected, request
from tests.support.sizes import sizes
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.executor.callers import Caller
from turnstile.executor.definitions import PoolDefinition
from turnstile.executor.results import Grants

_ACTIONS: Final = (
    Action(name="a"),
    Action(name="b"),
    Action(name="c", keys=("7", "8"), limit=1),
)
_CONCURRENCY: Final = 2
_ORDERS: Final = ("fair", "arrival")
_SHARES: Final = ({"a": 3, "c": 2}, {"a": 2, "b": 3})
"""Weights of actions. Both have the same unit of tags."""
_REQUESTS: Final = (("a", "", 3), ("a", "", 3), ("a", "", 2), ("b", "", 3), ("c", "7", 3), ("c", "8", 3))
_CALLER: Final = Caller("alice")
_WALK: Final = 60
_REORDER: Final = "change the order"
_REWEIGH: Final = "change the weights"
_WEIGHTS: Final = {
    "admit": 14, "settle": 9, "reclaim": 2, "cancel": 2, "pause": 1, "resume": 3, _REORDER: 1,
    _REWEIGH: 1,
}  # fmt: skip
"""How often each kind of operation is chosen, while it can happen."""


def _configuration(pool: Pool) -> Configuration:
    return Configuration(
        name="managed pool",
        system=System(
            actions=_ACTIONS, pools=(pool,), workers=(Worker(name=WORKER, concurrency=_CONCURRENCY),)
        ),
        alive_max=24,
        requests=_REQUESTS,
        pausable=(("pool default",),),
    )  # fmt: skip


class Followed(Gates):
    """The model with the grants of the database in place of its own decision about the pool."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.granted: set[int] = set()
        """The tickets of what the database has granted, until they pass here."""

    def next_at_pool(self, table: Table, gate: int) -> Execution | None:
        waiting = [e for e in table.waiting[gate] if e.ticket in self.granted]
        if not waiting:
            return None
        first = min(waiting, key=lambda e: self.position(table, gate, e))
        self.granted.remove(first.ticket)
        return first


class Walk:
    """One random walk, on a database without executions, in a transaction."""

    def __init__(self, protocol: Protocol, seed: int) -> None:
        self.protocol = protocol
        self.manager = protocol.queue_manager
        self.random = random.Random(seed)
        self.order = seed % len(_ORDERS)
        self.shares = 0
        self.paused = False
        self.ids: dict[int, int] = {}
        """Of live executions, by ticket."""
        self.attempts: dict[int, int] = {}
        self._follow()
        self.state = self.model.initial()

    def _follow(self, *earlier: System) -> None:
        """Check by the present order and weights, from now on."""
        self.pool = Pool(lead=1, order=_ORDERS[self.order], weights=_SHARES[self.shares])
        self.configuration = _configuration(self.pool)
        self.model = Followed(self.configuration.system)
        self.checker = Checker(self.configuration.system, earlier)
        self.memory = self.checker.empty_memory()

    async def run(self) -> None:
        await drop_workers(self.protocol)
        await self.protocol.register(concurrency=_CONCURRENCY)
        for action in _ACTIONS:
            await self.protocol.put(
                action.name, max_concurrent=action.limit, submitter_keys=True, max_reclaims=1000
            )
        await self._set_pool()
        await refresh(self.protocol)
        for _ in range(_WALK):
            await self._step()

    async def _step(self) -> None:
        possible = defaultdict(list)
        for event in self.configuration.events(self.state):
            possible[event.name].append(event)
        possible |= {name: [Event(name)] for name in (_REORDER, _REWEIGH)}
        (name,) = self.random.choices(list(possible), [_WEIGHTS[name] for name in possible])
        event = self.random.choice(possible[name])
        grants = await self._on_the_database(event)
        while grants.more_queue_ids:
            # As the dispatcher does.
            grants = Grants(granted=grants.granted) + await self.manager.grant(grants.more_queue_ids)
        await agrees(self.protocol)
        self._check(event, grants)
        held = set(await self.protocol.held())
        assert held == {self.ids[e.ticket] for e in self.state.executions if e.gate == GRANTED}

    def _check(self, event: Event, grants: Grants) -> None:
        tickets = {execution_id: ticket for ticket, execution_id in self.ids.items()}
        self.model.granted = {tickets[grant.execution_id] for grant in grants.granted}
        self.attempts |= {tickets[grant.execution_id]: grant.attempt for grant in grants.granted}
        before = self.state
        if event.name == _REORDER:
            before = before._replace(tags=(), virtual_times=())
        is_change = event.name in (_REORDER, _REWEIGH)
        step = self.model.decide(before) if is_change else apply(self.model, before, event)
        assert not self.model.granted, f"granted, but not first at the pool: {self.model.granted}"
        self.memory = self.checker.after(before, self.memory, event, step)
        self.checker.at_rest(self.model, step.state, self.memory)
        self.state = step.state

    async def _on_the_database(self, event: Event) -> Grants:
        match event:
            case Event("admit", (str(action), str(key), int(priority))):
                return await self._admit(action, key, priority)
            case Event("settle"):
                ended = await finish(self.protocol, *(self.ids.pop(ticket) for ticket in event.numbers))
                return await self._settle([(*each, Status.COMPLETED) for each in ended.items()])
            case Event("reclaim", (int(ticket),)):
                execution_id, attempt = self.ids[ticket], self.attempts[ticket]
                await self.protocol.claim(execution_id, attempt=attempt)
                assert await self.protocol.hand_back(execution_id, attempt=attempt)
                return await self._settle([(execution_id, attempt, None)])
            case Event("cancel", (int(ticket),)):
                (move,) = await self.protocol.cancel(self.ids.pop(ticket))
                return await self._settle([(move.execution_id, move.attempt, Status.CANCELLED)])
            case Event("pause" | "resume" as name):
                self.paused = name == "pause"
                return await self._set_pool()
            case Event("change the weights"):
                self.shares = (self.shares + 1) % len(_SHARES)
                self._follow(self.configuration.system)
                return await self._set_pool()
            case _:
                self.order = (self.order + 1) % len(_ORDERS)
                self._follow()
                return await self._set_pool()

    async def _admit(self, action: str, key: str, priority: int) -> Grants:
        verdicts, grants = await self.protocol.admit(
            request(action, concurrency_key=key or None, priority=priority)
        )
        self.ids[self.state.next_ticket] = accepted(verdicts[0]).execution_id
        return grants

    async def _settle(self, messages: list[tuple[int, int, Any]]) -> Grants:
        settled = await self.manager.settle([(ExecutionId(i), Attempt(n), end) for i, n, end in messages])
        return settled.grants

    async def _set_pool(self) -> Grants:
        definition = PoolDefinition(
            name="default", order=self.pool.order, weights=dict(self.pool.weights), paused=self.paused
        )
        return await self.manager.put_pool(definition, changed_by=_CALLER)


@sizes("walks", short=6, whole=100)
@pytest.mark.timeout(600)
async def test_a_managed_pool_keeps_its_rules_in_random_walks(database_url: str, walks: int) -> None:
    async with connected(database_url) as protocol:
        # If a change of the weights alone is not stored, the last of the short walks fails.
        for seed in range(3, 3 + walks):
            async with rolled_back(protocol, seed):
                await Walk(protocol, seed).run()
