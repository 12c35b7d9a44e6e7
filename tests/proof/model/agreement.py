"""The machine's core: one transaction, one model, and the comparison after each step (P1, P2, P3).

Next: `executor_rules`, `worker_rules` and `time_rules` say what may happen.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from tests.integration.executor.reading import ids_in
from tests.proof.model.lines import Asked
from tests.proof.model.model import Model
from tests.proof.model.observation import expected, observe
from tests.proof.model.requests import BOUNDS, NOBODY, RECLAIMS_MAX, admission, asks
from tests.support.protocol import Protocol, offer
from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.decisions import Accepted, Verdict
from turnstile.worker.record import Offer

T = TypeVar("T")


class Agreement(RuleBasedStateMachine):
    """Says everything twice: to the statements and to the model. One transaction, rolled back at the end."""

    runner: ClassVar[asyncio.Runner]
    protocol: ClassVar[Protocol]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.ends: dict[str, str] = {}
        self.agreed = True
        self.transaction = self.protocol.transaction()
        self.do(self.transaction.start())

    def teardown(self) -> None:
        """Heal: whatever was lost, late or dead, everything must drain (P5, P7)."""
        try:
            if self.agreed and self.model.runs:
                self.heal()
        finally:
            self.do(self.transaction.rollback())

    def heal(self) -> None:
        """Bring everything to its end; a rule book that has the means overrides this."""

    def do(self, awaited: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(awaited)

    @initialize(limit=st.sampled_from([1, 2, 3]), batch=st.lists(asks, min_size=8, max_size=8))
    def begin(self, limit: int, batch: list[Asked]) -> None:
        for _ in range(2):
            self.start_worker()
        for ref in BOUNDS:
            self.put(ref, limit, False)
        self.admit(batch)

    def agree(self, granted: list[int] | None = None) -> None:
        """Compare, and look at the promises in the tables themselves."""
        self.agreed = False
        seen, ends = self.do(observe(self.protocol.connection))
        assert seen == expected(self.model)
        assert self.ends.items() <= ends.items(), "P3: an end has changed"
        self.ends = ends
        for _, _, limit, *_, waiting, held in seen.lines:
            started = [i for i in granted or () if i in held]
            if started:
                assert limit is None or len(held) <= limit, "P1: granted past the limit"
                assert not waiting or max(started) < waiting[0], "P2: overtaken"
        self.agreed = True

    def start_worker(self) -> str:
        """Start one more worker process, under an id of its own."""
        worker = f"worker-{len(self.model.workers) + 1}"
        self.do(self.protocol.register(worker))
        self.model.workers.append(worker)
        self.model.live_workers.add(worker)
        return worker

    def worker(self, n: int) -> str:
        """Return one of the two latest workers; now and then one that may be long gone."""
        return self.model.workers[n % len(self.model.workers) if n % 5 == 0 else -1 - n % 2]

    def choose(self, n: int, *statuses: str) -> int:
        """Return the n-th of those in one of these states; now and then any, or one that does not exist."""
        fitting = [i for i, run in self.model.runs.items() if run.status in statuses]
        if n % 7 == 0 or not fitting:
            fitting = [*self.model.runs, NOBODY]
        return fitting[n % len(fitting)]

    def has(self, *statuses: str) -> bool:
        return any(run.status in statuses for run in self.model.runs.values())

    def attempt(self, i: int, off: int) -> int:
        return max(0, self.model.runs[i].attempt + off) if i in self.model.runs else 1

    def offers(self, status: str, which: list[int], off: int) -> list[Offer]:
        ids = sorted({self.choose(n, status) for n in which})
        return [offer(i, self.attempt(i, off)) for i in ids]

    def offer(self, i: int) -> Offer:
        """Return the offer that the latest grant made."""
        return offer(i, self.model.runs[i].attempt)

    def admit(self, batch: list[Asked]) -> None:
        verdicts, grants = self.do(self.protocol.admit(*map(admission, batch)))
        newest = max(self.model.runs, default=0)
        new = [v.execution_id if isinstance(v, Accepted) and not v.duplicate else None for v in verdicts]
        said, granted = self.model.admit(batch, new)
        assert [self._in_words(v) for v in verdicts] == said
        assert [i for i in new if i] == sorted(i for i in new if i), "P2: tickets out of order"
        assert all(i > newest for i in new if i)
        for v in verdicts:
            if isinstance(v, Accepted):
                assert v.status == self.model.runs[v.execution_id].status
                assert v.position == self.model.position(v.execution_id)
        assert ids_in(grants) == granted
        self.agree(granted)

    def _in_words(self, verdict: Verdict) -> str:
        if isinstance(verdict, Accepted):
            return f"{'copy of' if verdict.duplicate else 'new'} {verdict.execution_id}"
        if verdict.code == "idempotency_conflict":
            return f"conflict with {verdict.message.split('execution ')[1].split(',')[0]}"
        assert verdict.code == "queue_full", verdict
        return "full"

    def put(self, ref: str, limit: int | None, paused: bool) -> list[int]:
        definition = ActionDefinition(
            ref=ref,
            max_concurrent=limit,
            paused=paused,
            max_queued=BOUNDS[ref],
            max_reclaims=RECLAIMS_MAX,
            submitter_keys=ref == "keyed",
        )
        granted = ids_in(self.do(self.protocol.queue_manager.put_actions([definition])))
        assert granted == self.model.put_action(ref, limit, paused, BOUNDS[ref])
        return granted

    def ask_to_stop(self, ids: set[int]) -> None:
        moves = self.do(self.protocol.cancel(*ids))
        answered = {m.execution_id: m.status.value for m in moves}
        assert answered == {i: self.model.cancel(i) for i in ids if i != NOBODY}
        self.agree()

    def run_out(self, ids: set[int]) -> None:
        """Let the time to live of these be over."""
        mortal = ids & self.model.deadlines
        for i in mortal:
            self.model.runs[i].overdue = True
        past = "expires_at = created_at + interval '1 us'"
        self.do(self.update(f"UPDATE execution SET {past} WHERE id = ANY ($1)", mortal))
        past = "expires_at = '-infinity'"
        self.do(self.update(f"UPDATE expiring SET {past} WHERE execution_id = ANY ($1)", mortal))

    def expire(self) -> None:
        moves = self.do(self.protocol.expire_due())
        assert {m.execution_id for m in moves} == self.model.expire_due()
        self.agree()

    async def update(self, statement: str, ids: set[int]) -> None:
        await self.protocol.connection.execute(statement, list(ids))
