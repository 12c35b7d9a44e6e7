"""The statements about pools keep their rules in random walks, while workers join, drain and die.

After each operation the rows are compared with rules that share nothing with the statements: what is granted
fits the workers of its pool and of its action (P11), no waiting execution precedes a newly granted one
(P12), actions that wait take turns (P14), and nothing waits that a worker slot is free for (P7).
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tests.integration.protocol.test_pool import agrees, end, refresh
from tests.proof.gates.walks import rolled_back
from tests.support.protocol import Protocol, connected
from tests.support.sizes import sizes

POOL_OF: Final = {"a": "default", "b": "default", "c": "default", "g": "gpu"}
LIMITS: Final = {"b": 2}
WORKERS: Final[Mapping[str, tuple[tuple[str, ...], int, tuple[str, ...] | None]]] = {
    "all": (("default",), 1, None),
    "both": (("default", "gpu"), 2, ("b", "c", "g")),
    "one": (("default",), 1, ("a",)),
    "many": (("default",), 4, ("c",)),
    "gpu": (("gpu",), 1, ("g",)),
}
"""Pools, concurrency, and the actions that it serves."""
_WALK: Final = 40
_ADMIT, _END, _CANCEL, _JOIN, _DRAIN, _DIE = "admit", "end", "cancel", "join", "drain", "die"
_OPERATIONS: Final = {_ADMIT: 12, _END: 9, _CANCEL: 2, _JOIN: 3, _DRAIN: 1, _DIE: 1}
_ROWS: Final = """
SELECT e.id, a.ref, e.priority, s.execution_id IS NOT NULL AS is_granted, s.worker_id
FROM execution e JOIN action a ON a.id = e.action_id LEFT JOIN slot s ON s.execution_id = e.id
WHERE e.completed_at IS NULL ORDER BY e.id
"""


class Walk:
    """One random walk, on an empty database in a transaction."""

    def __init__(self, protocol: Protocol, seed: int) -> None:
        self.protocol = protocol
        self.random = random.Random(seed)
        self.live: dict[str, str] = {}
        """The kind of each live worker, by id."""
        self.rows: dict[int, Any] = {}
        self.gains: Counter[tuple[str, str]] = Counter()
        """By two actions: turns of the first since both wait."""
        self.number = 0
        self.leads: dict[str, int] = {}

    async def run(self) -> None:
        for worker in await self.protocol.column("SELECT id FROM worker"):
            await self.protocol.connection.execute("SELECT turnstile.sign_off($1)", worker)
        for ref, pool in POOL_OF.items():
            await self.protocol.put(ref, pool=pool, max_concurrent=LIMITS.get(ref), max_reclaims=99)
        await self.settle_down()
        for _ in range(_WALK):
            (operation,) = self.random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
            await getattr(self, operation)()
            await self.settle_down()
            await self.check(operation)

    async def admit(self) -> None:
        priority = self.random.choice((3, 3, 3, 2))
        await self.protocol.submit(self.random.choice(list(POOL_OF)), priority=priority)

    async def end(self) -> None:
        granted = [each["id"] for each in self.rows.values() if each["is_granted"]]
        if granted:
            await end(self.protocol, *self.random.sample(granted, min(len(granted), 2)))

    async def cancel(self) -> None:
        waiting = [each["id"] for each in self.rows.values() if not each["is_granted"]]
        if waiting:
            await self.protocol.cancel(self.random.choice(waiting))

    async def join(self) -> None:
        kind = self.random.choice(list(WORKERS))
        pools, concurrency, serves = WORKERS[kind]
        self.number += 1
        worker = f"{kind} {self.number}"
        await self.protocol.register(worker, pools=pools, concurrency=concurrency, serves=serves)
        self.live[worker] = kind
        offered = [each for each in self.rows.values() if each["is_granted"] and each["worker_id"] is None]
        mine = [each["id"] for each in offered if self.can_run(worker, each["ref"])]
        if mine:
            await self.protocol.claim_verdicts(mine[0], worker=worker)

    async def drain(self) -> None:
        if self.live:
            worker = self.random.choice(list(self.live))
            del self.live[worker]
            await self.protocol.connection.execute("SELECT turnstile.drain_worker($1)", worker)

    async def die(self) -> None:
        if self.live:
            worker = self.random.choice(list(self.live))
            del self.live[worker]
            await self.protocol.lose_lease(worker)
            await self.protocol.reclaim()

    async def settle_down(self) -> None:
        """Count the workers and grant, as an executor and its watchdog do, until nothing more is granted."""
        while await refresh(self.protocol):
            pass
        while queue_ids := await self.protocol.grantable_queues():
            if not (await self.protocol.grant(*queue_ids)).granted:
                break
        await agrees(self.protocol)

    def can_run(self, worker: str, ref: str) -> bool:
        pools, _, serves = WORKERS[self.live[worker]]
        return POOL_OF[ref] in pools and (serves is None or ref in serves)

    def able(self, ref: str) -> frozenset[str]:
        return frozenset(worker for worker in self.live if self.can_run(worker, ref))

    def members(self, pool: str) -> frozenset[str]:
        return frozenset(worker for worker in self.live if pool in WORKERS[self.live[worker]][0])

    def room(self, pool: str, ref: str | None = None) -> int:
        """Return what the workers of a pool, or those of an action, have left, with the lead."""
        workers = self.members(pool) if ref is None else self.able(ref)
        taken = 0
        for each in self.rows.values():
            able = self.able(each["ref"])
            stays = each["worker_id"] is None or each["worker_id"] in self.live
            taken += (
                each["is_granted"]
                and POOL_OF[each["ref"]] == pool
                and stays
                and bool(able)
                and able <= workers
            )
        capacity = sum(WORKERS[self.live[worker]][1] for worker in workers)
        return (capacity + self.leads[pool] if workers else 0) - taken

    async def check(self, operation: str) -> None:
        before = self.rows
        self.rows = {each["id"]: each for each in await self.protocol.connection.fetch(_ROWS)}
        pools = await self.protocol.connection.fetch("SELECT name, lead FROM turnstile.current_pool")
        self.leads = {each["name"]: each["lead"] for each in pools}
        new = [
            each
            for number, each in self.rows.items()
            if each["is_granted"] and not (number in before and before[number]["is_granted"])
        ]
        waiting = [each for each in self.rows.values() if not each["is_granted"]]
        held = Counter(each["ref"] for each in self.rows.values() if each["is_granted"])
        for each in new:
            pool = POOL_OF[each["ref"]]
            if operation in (_ADMIT, _END, _CANCEL):
                assert min(self.room(pool), self.room(pool, each["ref"])) >= 0, "P11"
            for other in waiting:
                if other["ref"] == each["ref"]:
                    assert (other["priority"], other["id"]) > (each["priority"], each["id"]), "P12"
        for each in waiting:
            ref, pool = each["ref"], POOL_OF[each["ref"]]
            slots = LIMITS.get(ref, 99) - held[ref]
            # Up to half of the lead becomes free before the next decision.
            slice_ = self.leads[pool] // 2
            assert min(slots, self.room(pool) - slice_, self.room(pool, ref)) <= 0, (
                f"P7: {each['id']} of {ref}"
            )
        self.check_turns(before, new, waiting)

    def check_turns(self, before: Mapping[int, Any], new: list[Any], waiting: list[Any]) -> None:
        """Compare the turns of `a` and `c`, which have no limit, while both wait for the same workers."""
        pair = {"a", "c"}
        both = {each["ref"] for each in before.values() if not each["is_granted"] and each["priority"] == 3}
        still = {each["ref"] for each in waiting if each["priority"] == 3}
        if not pair <= both & still or self.able("a") != self.able("c"):
            self.gains.clear()
            return
        for each in new:
            if each["ref"] in pair and each["priority"] == 3:
                self.gains[each["ref"], "turns"] += 1
        assert abs(self.gains["a", "turns"] - self.gains["c", "turns"]) <= 2, "P14"


@sizes("walks", short=2, whole=300)
async def test_pools_keep_their_rules_in_random_walks(database_url: str, walks: int) -> None:
    async with connected(database_url) as protocol:
        # Without sets of workers the first of these fails.
        for seed in range(16, 16 + walks):
            async with rolled_back(protocol, seed):
                await Walk(protocol, seed).run()
