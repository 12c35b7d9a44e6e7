"""Actions of two pools share resources, while pools and resources are paused and workers come and leave.

After each operation, and what the watchdog does then, the rows are compared with rules that share nothing
with the statements. What has a closed gate on its route holds nothing: its pool or a resource is paused, or
no worker serves it. Nothing waits at a resource whose next units are free, or in a queue with a free slot
while its route is open (P7, P12).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.integration.protocol.test_pool import agrees, end, refresh
from tests.integration.protocol.test_pool_settings import set_pool
from tests.proof.gates.twin import Tables, found
from tests.proof.gates.walks import rolled_back
from tests.support.gates import put_resource
from tests.support.protocol import Protocol, connected
from tests.support.sizes import sizes

CAPACITIES: Final = {"cad": 2, "api": 1}
"""In the order of their ranks."""


class Kind(NamedTuple):
    """An action."""

    pool: str
    limit: int | None
    uses: Mapping[str, int]


ACTIONS: Final = {
    "drawing": Kind("default", 3, {"cad": 1}),
    "heavy": Kind("default", None, {"cad": 2, "api": 1}),
    "render": Kind("gpu", None, {"cad": 1}),
    "upload": Kind("gpu", 2, {"api": 1}),
    "plain": Kind("default", 2, {}),
}
WORKERS: Final = {"one": "default", "two": "default", "three": "gpu"}
"""The pool that each serves, with two worker slots."""
_CONCURRENCY: Final = 2
_WALK: Final = 40
_OPERATIONS: Final = {
    "admit": 18, "end": 6, "cancel": 1, "pause_pool": 3, "pause_resource": 1, "come_or_go": 1
}  # fmt: skip
_ROWS: Final = """
SELECT e.id, a.ref, s.execution_id IS NOT NULL AS is_granted,
       (SELECT g.name FROM gate g WHERE g.id = coalesce(f.gate_id, w.line_id)) AS waits_at,
       w.queue_id IS NOT NULL AS has_passed
FROM execution e JOIN action a ON a.id = e.action_id
LEFT JOIN slot s ON s.execution_id = e.id
LEFT JOIN waiting w ON w.place = turnstile.place_of(e.priority, e.id)
LEFT JOIN gate_flow f ON f.id = w.line_id
WHERE e.completed_at IS NULL ORDER BY e.id
"""

# Up to half of the lead becomes free before the next decision.
_FULL: Final = "SELECT name FROM turnstile.current_pool WHERE capacity - held <= lead / 2"


class Walk:
    """One random walk, on an empty database in a transaction."""

    def __init__(self, protocol: Protocol, seed: int) -> None:
        self.protocol = protocol
        self.random = random.Random(seed)
        self.paused: set[str] = set()
        """Names of paused pools and resources."""
        self.live: dict[str, str] = {}
        """Ids of live workers, by name."""
        self.number = 0
        self.rows: list[Any] = []

    async def run(self) -> None:
        for worker in await self.protocol.column("SELECT id FROM worker"):
            await self.protocol.connection.execute("SELECT turnstile.sign_off($1)", worker)
        for rank, (name, capacity) in enumerate(CAPACITIES.items(), 1):
            await put_resource(self.protocol.database, name, capacity, rank=rank)
        for ref, kind in ACTIONS.items():
            uses = [{"resource": name, "units": units} for name, units in kind.uses.items()]
            await self.protocol.put(ref, pool=kind.pool, max_concurrent=kind.limit, uses=uses)
        for worker in WORKERS:
            await self.come(worker)
        await self.settle_down()
        for _ in range(_WALK):
            (operation,) = self.random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
            await getattr(self, operation)()
            await self.settle_down()
            await self.check()

    async def admit(self) -> None:
        await self.protocol.submit(self.random.choice(list(ACTIONS)))

    async def end(self) -> None:
        granted = [each["id"] for each in self.rows if each["is_granted"]]
        if granted:
            await end(self.protocol, *self.random.sample(granted, min(len(granted), 2)))

    async def cancel(self) -> None:
        waiting = [each["id"] for each in self.rows if not each["is_granted"]]
        if waiting:
            cancelled = self.random.choice(waiting)
            await self.protocol.cancel(cancelled)
            await self.protocol.settle((cancelled, 0))

    async def pause_pool(self) -> None:
        name = self.random.choice(("default", "gpu"))
        self.paused ^= {name}
        await set_pool(self.protocol, name, paused=name in self.paused)

    async def pause_resource(self) -> None:
        name = self.random.choice(list(CAPACITIES))
        self.paused ^= {name}
        await put_resource(
            self.protocol.database, name, CAPACITIES[name], rank=list(CAPACITIES).index(name) + 1,
            paused=name in self.paused,
        )  # fmt: skip

    async def come_or_go(self) -> None:
        worker = self.random.choice(list(WORKERS))
        if worker in self.live:
            await self.protocol.connection.execute("SELECT turnstile.sign_off($1)", self.live.pop(worker))
        else:
            await self.come(worker)

    async def come(self, worker: str) -> None:
        self.number += 1
        self.live[worker] = f"{worker} {self.number}"
        await self.protocol.register(self.live[worker], pools=[WORKERS[worker]], concurrency=_CONCURRENCY)

    async def settle_down(self) -> None:
        """Do what an executor and its watchdog do, until nothing more moves."""
        while True:
            has_moved = bool(await refresh(self.protocol))
            advanced = await self.protocol.row("SELECT * FROM turnstile.advance_gates(2)")
            passed = await self.protocol.row("SELECT * FROM turnstile.pass_rates()")
            has_moved |= advanced["remaining"] or bool(advanced["granted"]) or bool(passed["granted"])
            if queue_ids := await self.protocol.grantable_queues():
                has_moved |= bool((await self.protocol.grant(*queue_ids)).granted)
            if not has_moved:
                break
        await agrees(self.protocol)
        Tables(await found(self.protocol.connection)).check()

    async def check(self) -> None:
        self.rows = list(await self.protocol.connection.fetch(_ROWS))
        taken: Counter[str] = Counter()
        slots: Counter[str] = Counter()
        first: dict[str, Any] = {}
        queued: dict[str, list[int]] = defaultdict(list)
        for each in self.rows:
            kind = ACTIONS[each["ref"]]
            slots[each["ref"]] += each["is_granted"] or each["has_passed"]
            if each["is_granted"]:
                taken.update(kind.uses)
                continue
            if each["has_passed"]:
                assert self.is_open(each["ref"]), f"{each['id']} of {each['ref']} waits at {each['waits_at']}"
                names = list(kind.uses)
                at = names.index(each["waits_at"]) if each["waits_at"] in names else len(names)
                taken.update({name: kind.uses[name] for name in names[:at]})
                first.setdefault(each["waits_at"], each)
            else:
                queued[each["ref"]].append(each["id"])
        for name, capacity in CAPACITIES.items():
            assert taken[name] <= capacity, f"P11: {taken[name]} units of {name}"
            if name in first:
                needs = ACTIONS[first[name]["ref"]].uses[name]
                assert needs > capacity - taken[name], f"P7: {first[name]['id']} could pass {name}"
        full = await self.protocol.column(_FULL)
        for ref, ids in queued.items():
            kind = ACTIONS[ref]
            # While the pool has no worker slot, an action waits in its queues for its turn there.
            if kind.uses and self.is_open(ref) and kind.pool not in full:
                assert kind.limit is not None, f"P7: {ids} of {ref} could leave their queue"
                assert slots[ref] >= kind.limit, f"P7: {ids} of {ref} could leave their queue"

    def is_open(self, ref: str) -> bool:
        kind = ACTIONS[ref]
        is_served = any(WORKERS[worker] == kind.pool for worker in self.live)
        return is_served and not self.paused & {kind.pool, *kind.uses}


@sizes("walks", short=2, whole=200)
async def test_what_is_closed_holds_nothing_and_what_is_open_passes(database_url: str, walks: int) -> None:
    async with connected(database_url) as protocol:
        for seed in range(walks):
            async with rolled_back(protocol, seed):
                await Walk(protocol, seed).run()
