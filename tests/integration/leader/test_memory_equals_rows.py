"""What the scheduler remembers and what a load finds are the same, after every turn of a random walk."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.ledger import Led
from tests.support.snapshots import snapshot_of
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded
from turnstile.executor.leader.loading import Memory, state_of
from turnstile.executor.leader.ports import Request
from turnstile.executor.leader.records import DefinitionRow, WorkerRow
from turnstile.executor.leader.writing import rows_of
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.inputs import (
    Admit,
    Cancel,
    Ended,
    Input,
    Returned,
    Started,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.state import Execution, State

DEFINITIONS = (
    DefinitionRow(
        kind="resource", name="cad", body={"name": "cad", "capacity": 3, "order": "fair", "rank": 1}
    ),
    DefinitionRow(
        kind="resource", name="api",
        body={"name": "api", "capacity": 1, "rank": 2, "rate": {"starts": 5, "per_seconds": 1.0}},
    ),
    DefinitionRow(
        kind="action", name="plain",
        body={"ref": "plain", "max_concurrent": 2, "retry": {"max_attempts": 3, "delay_seconds": 0.3}},
    ),
    DefinitionRow(
        kind="action", name="keyed",
        body={
            "ref": "keyed", "max_concurrent": 1, "max_concurrent_total": 2, "order": "fair", "ttl_seconds": 5,
        },
    ),
    DefinitionRow(
        kind="action", name="heavy",
        body={"ref": "heavy", "uses": [{"resource": "cad", "units": 2}, {"resource": "api"}]},
    ),
    DefinitionRow(kind="action", name="light", body={"ref": "light", "uses": [{"resource": "cad"}]}),
    DefinitionRow(
        kind="key", name="keyed/7",
        body={"action_ref": "keyed", "key": "7", "has_limit": True, "max_concurrent": 2, "weight": 3},
    ),
)  # fmt: skip


def worker_row(worker_id: str) -> WorkerRow:
    return WorkerRow(
        worker_id=worker_id, session=1, secret_hash=b"x", name=worker_id, pools=("default",), actions=None,
        concurrency=2, lease_seconds=30.0, is_taking=True,
    )  # fmt: skip


class Walk:
    """A state, its ledger, and random inputs."""

    def __init__(self, led: Led, seed: int) -> None:
        self.led, self.random = led, Random(seed)
        self.now = 1_700_000_000.0
        self.state, self.memory = State(), Memory()
        self.workers = 0

    async def begin(self) -> None:
        await self.led.write(definitions=DEFINITIONS)
        await self.load()

    async def load(self) -> None:
        """Go on with what a new leader would know."""
        self.led.epoch, self.led.number = await self.led.ledger.take_over("a"), 0
        self.state, self.memory = state_of(await self.led.load())
        back = [
            WorkerChanged(worker_id=each.id, pools=frozenset(each.pools), concurrency=2)
            for each in self.state.workers.values()
        ]
        await self.turn(back)

    async def turn(self, inputs: Sequence[Input], **fields: object) -> None:
        self.now += self.random.choice((0.001, 0.01, 0.4))
        out = decide(self.state, inputs, self.now)
        await self.led.write(at=self.state.now, **rows_of(self.state, self.memory, out).fields(), **fields)

    async def step(self) -> None:
        recalled = [each for worker in self.state.workers.values() for each in worker.recalled]
        if recalled:
            await self.turn([self.answer(each) for each in recalled])
        kind = self.random.choice(
            ("admit", "admit", "admit", "join", "gone", *["report"] * 5, "cancel", "time")
        )
        match kind:
            case "admit":
                await self.turn([self.request() for _ in range(self.random.randint(1, 4))])
            case "join":
                self.workers += 1
                name = f"w{self.workers}"
                joined = WorkerChanged(worker_id=name, pools=frozenset({"default"}), concurrency=2)
                await self.turn([joined], workers=[worker_row(name)])
            case "gone" if len(self.state.workers) > 2:
                name = self.random.choice(list(self.state.workers))
                gone = replace(worker_row(name), gone_at=self.now, gone_why="lost", held_ids=())
                await self.turn([WorkerGone(worker_id=name)], workers=[gone])
            case "report":
                held = [each for w in self.state.workers.values() for each in w.held.values()]
                if held:
                    await self.turn([self.report(self.random.choice(held))])
            case "cancel":
                if self.state.next_id > 1 and self.state.executions:
                    chosen = self.state.executions[self.random.choice(list(self.state.executions))]
                    await self.turn([self.cancel(chosen)])
            case _:
                self.now += 2.0
                await self.turn([])

    def request(self) -> Admit:
        ref = self.random.choice(("plain", "keyed", "heavy", "light"))
        request = Request(action_ref=ref, parameters=b"{}", request_hash=UUID(int=1))
        fields: dict[str, float] = {}
        match self.random.randrange(6):
            case 0:
                fields["run_at"] = round(self.now + 1.0, 3)
            case 1:
                fields["ttl_seconds"] = 1.5
            case 2:
                fields["timeout_seconds"] = 9.0
            case _:
                pass
        key = self.random.choice(("7", "8", "9")) if ref == "keyed" else ""
        source = SimpleNamespace(request=request, delivery_key=uuid4())
        return Admit(
            action_ref=ref, key=key, priority=self.random.choice((1, 3, 3, 3)), source=source, **fields
        )

    def answer(self, execution: Execution) -> Input:
        """Answer a recall: it has started, or comes back."""
        assert execution.grant is not None
        if self.random.random() < 0.5:
            return Started(execution_id=execution.id, grant=execution.grant, at=round(self.now, 3))
        return Returned(execution_id=execution.id, grant=execution.grant)

    def report(self, execution: Execution) -> Input:
        assert execution.grant is not None
        match self.random.randrange(5):
            case 0:
                return Started(execution_id=execution.id, grant=execution.grant, at=round(self.now, 3))
            case 1:
                return Returned(execution_id=execution.id, grant=execution.grant)
            case 2:
                body = AttemptEnded(execution_id=execution.id, grant=execution.grant, status=Status.FAILED)
                return Ended(
                    execution_id=execution.id, grant=execution.grant, status=Status.FAILED, is_retryable=True,
                    source=SimpleNamespace(body=SimpleNamespace(body=body)),
                )  # fmt: skip
            case _:
                pass
        body = AttemptEnded(
            execution_id=execution.id, grant=execution.grant, status=Status.COMPLETED, result=b"1"
        )
        return Ended(
            execution_id=execution.id, grant=execution.grant, status=Status.COMPLETED,
            source=SimpleNamespace(body=SimpleNamespace(body=body)),
        )  # fmt: skip

    def cancel(self, execution: Execution) -> Cancel:
        return Cancel(
            execution_id=execution.id, reason="no", action_ref=execution.queue.action.ref,
            key=execution.queue.key, priority=execution.priority,
        )  # fmt: skip


def differences(mine: Any, loaded: Any) -> Any:
    """Return what differs, by key."""
    if isinstance(mine, tuple) and isinstance(loaded, tuple):
        return [pair for pair in zip(mine, loaded, strict=False) if pair[0] != pair[1]]
    if isinstance(mine, list) and mine and hasattr(mine[0], "id"):
        return [m.id for m in mine], [m.id for m in loaded]
    if not isinstance(mine, dict):
        return mine, loaded
    keys = mine.keys() | loaded.keys()
    return {k: differences(mine.get(k), loaded.get(k)) for k in keys if mine.get(k) != loaded.get(k)}


@pytest.mark.parametrize("seed", range(2))
async def test_a_load_finds_what_the_scheduler_remembers(led: Led, seed: int) -> None:
    walk = Walk(led, seed)
    await walk.begin()
    for number in range(150):
        await walk.step()
        if number % 10 == 9:
            found, _ = state_of(await led.load())
            found.now = walk.state.now
            expected, loaded = snapshot_of(walk.state), snapshot_of(found)
            for name, mine in expected.items():
                assert loaded[name] == mine, differences(mine, loaded[name])
        if number % 50 == 49:
            await walk.load()
