"""A state machine that applies random operations to the SQL functions and to the model, and compares both.

One transaction, rolled back at the end. After each step the tables equal the model (P1, P2, P3); at the end
all faults stop, and every execution must become terminal (P5, P7).
"""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.proof.model.model import TERMINAL, UNSTARTED, Message, Model, Request
from tests.proof.model.observation import expected, observe
from tests.support.protocol import Protocol, ids_in, offer, request
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.states import Status
from turnstile.executor.results import Accepted, Admission, Verdict
from turnstile.worker.protocol import Claim, Finished, Offer, Report
from turnstile.worker.protocol import Verdict as WorkerVerdict

T = TypeVar("T")
_ROUNDS_MAX: Final = 60
_CANCELS_MAX: Final = 2

QUEUE_KEYS = [("plain", ""), ("keyed", "x"), ("keyed", "y"), ("bounded", "")]
BOUNDS = {"plain": None, "keyed": None, "bounded": 2}
LATER = datetime(2100, 1, 1, tzinfo=UTC)
UNKNOWN_ID = 10**15
_EARLIEST: Final = "(SELECT b.first_at FROM turnstile.due_bound b)"
"""The earliest instant that a delay or a deadline may have."""
RECLAIMS_MAX = 2

rarely = st.sampled_from([False, False, False, True])
limits = st.sampled_from([None, 0, 1, 1, 2, 2, 3, 5])
requests = st.builds(
    Request,
    queue_key=st.sampled_from(QUEUE_KEYS),
    content=st.integers(0, 1),
    delayed=rarely,
    has_deadline=st.booleans(),
    key=st.sampled_from([None, None, None, "k", "1"]),
)
nth = st.integers(0, 999)
some = st.lists(nth, min_size=1, max_size=4)
ends = st.sampled_from([Status.COMPLETED, Status.FAILED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED])
attempt_offsets = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
"""Offsets that make the number of an attempt wrong."""
reports = st.sampled_from(["stored"] * 5 + ["none"] * 2 + ["wrong"])
"""The terminal status that a message reports: the stored one, none, or a wrong one."""


def admission(wanted: Request) -> Admission:
    ref, key = wanted.queue_key
    return request(
        ref, concurrency_key=key or None, parameters={"content": wanted.content}, idempotency_key=wanted.key,
        run_at=LATER if wanted.delayed else None, ttl=3600 if wanted.has_deadline else None,
    )  # fmt: skip


class Machine(RuleBasedStateMachine):
    """Every operation runs twice: on the database and on the model."""

    runner: ClassVar[asyncio.Runner]
    protocol: ClassVar[Protocol]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.ends: dict[str, str] = {}
        self.is_equal = True
        self.transaction = self.protocol.transaction()
        self.do(self.transaction.start())

    def teardown(self) -> None:
        """Heal: whatever was lost, late or dead, every execution must become terminal (P5, P7)."""
        try:
            if self.is_equal and self.model.runs:
                self.heal()
        finally:
            self.do(self.transaction.rollback())

    def do(self, awaited: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(awaited)

    @initialize(limit=st.sampled_from([1, 2, 3]), batch=st.lists(requests, min_size=8, max_size=8))
    def begin(self, limit: int, batch: list[Request]) -> None:
        for _ in range(2):
            self.start_worker()
        for ref in BOUNDS:
            self.put(ref, limit, False)
        self.admit(batch)

    def compare(self, granted: list[int] | None = None) -> None:
        """Compare the tables with the model, and check the promises on the tables."""
        self.is_equal = False
        seen, ends = self.do(observe(self.protocol.connection))
        assert seen == expected(self.model)
        assert self.ends.items() <= ends.items(), "P3: a terminal execution has changed"
        self.ends = ends
        for _, _, limit, *_, waiting, held in seen.queues:
            started = [i for i in granted or () if i in held]
            if started:
                assert limit is None or len(held) <= limit, "P1: granted above the limit"
                assert not waiting or max(started) < waiting[0], "P2: overtaken"
        self.is_equal = True

    def start_worker(self) -> str:
        """Start one more worker with a new id."""
        worker = f"worker-{len(self.model.workers) + 1}"
        self.do(self.protocol.register(worker))
        self.model.workers.append(worker)
        self.model.live_workers.add(worker)
        return worker

    def worker(self, n: int) -> str:
        """Return one of the two latest workers, sometimes an older one."""
        return self.model.workers[n % len(self.model.workers) if n % 5 == 0 else -1 - n % 2]

    def choose(self, n: int, *statuses: str) -> int:
        """Return the n-th execution in one of these states, sometimes any, or an unknown one."""
        fitting = [i for i, run in self.model.runs.items() if run.status in statuses]
        if n % 7 == 0 or not fitting:
            fitting = [*self.model.runs, UNKNOWN_ID]
        return fitting[n % len(fitting)]

    def has(self, *statuses: str) -> bool:
        return any(run.status in statuses for run in self.model.runs.values())

    def attempt(self, i: int, off: int) -> int:
        return max(0, self.model.runs[i].attempt + off) if i in self.model.runs else 1

    def offers(self, status: str, which: list[int], off: int) -> list[Offer]:
        ids = sorted({self.choose(n, status) for n in which})
        return [offer(i, self.attempt(i, off)) for i in ids]

    def offer(self, i: int) -> Offer:
        """Return the offer of the latest grant."""
        return offer(i, self.model.runs[i].attempt)

    def admit(self, batch: list[Request]) -> None:
        verdicts, grants = self.do(self.protocol.admit(*map(admission, batch)))
        newest = max(self.model.runs, default=0)
        new = [v.execution_id if isinstance(v, Accepted) and not v.duplicate else None for v in verdicts]
        outcomes, granted = self.model.admit(batch, new)
        assert [self._described(v) for v in verdicts] == outcomes
        assert [i for i in new if i] == sorted(i for i in new if i), "P2: ids out of order"
        assert all(i > newest for i in new if i)
        for v in verdicts:
            if isinstance(v, Accepted):
                assert v.status == self.model.runs[v.execution_id].status
                assert v.position == self.model.position(v.execution_id)
        assert ids_in(grants) == granted
        self.compare(granted)

    def _described(self, verdict: Verdict) -> str:
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

    def request_cancel(self, ids: set[int]) -> None:
        moves = self.do(self.protocol.cancel(*ids))
        answered = {m.execution_id: m.status.value for m in moves}
        assert answered == {i: self.model.cancel(i) for i in ids if i != UNKNOWN_ID}
        self.compare()

    def end_time_to_live(self, ids: set[int]) -> None:
        """End the time to live of these executions."""
        has_deadline = ids & self.model.deadlines
        for i in has_deadline:
            self.model.runs[i].overdue = True
        past = "expires_at = created_at + interval '1 us'"
        self.do(self.update(f"UPDATE execution SET {past} WHERE id = ANY ($1)", has_deadline))
        past = f"expires_at = {_EARLIEST}"
        self.do(self.update(f"UPDATE expiring SET {past} WHERE execution_id = ANY ($1)", has_deadline))

    def expire(self) -> None:
        moves = self.do(self.protocol.expire_due())
        assert {m.execution_id for m in moves} == self.model.expire_due()
        self.compare()

    async def update(self, statement: str, ids: set[int]) -> None:
        await self.protocol.connection.execute(statement, list(ids))

    # --- the executor

    @rule(batch=st.lists(requests, min_size=1, max_size=5))
    def request(self, batch: list[Request]) -> None:
        self.admit(batch)

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule(completions=st.lists(st.tuples(nth, attempt_offsets, reports), min_size=1, max_size=5))
    def settle(self, completions: list[tuple[int, int, str]]) -> None:
        ends = [self.choose(n, *TERMINAL, "delayed") for n, *_ in completions]
        self.settle_by(
            [
                (i, self.attempt(i, off), self.reported_status(i, how))
                for i, (_, off, how) in zip(ends, completions, strict=True)
            ]
        )

    @precondition(lambda self: bool(self.model.unpublished))
    @rule(which=some)
    def repeat_slot_messages(self, which: list[int]) -> None:
        """Messages about the slot of the last attempt arrive late or repeatedly."""
        unpublished = sorted(self.model.unpublished)
        chosen = {unpublished[n % len(unpublished)] for n in which}
        self.settle_by([(i, self.attempt(i, 0), None) for i in sorted(chosen)])

    @precondition(lambda self: self.has(*TERMINAL, "delayed"))
    @rule()
    def settle_all(self) -> None:
        due = self.do(self.protocol.due_completions())
        messages = [(i, self.attempt(i, 0), self.reported_status(i, "stored")) for i in due]
        assert self.settle_by(messages) == len(messages)

    def settle_by(self, messages: list[Message]) -> int:
        """Settle these messages; return how many had an effect."""
        freed = self.do(
            self.protocol.settle_as(
                *((i, attempt, None if end is None else Status(end)) for i, attempt, end in messages)
            )
        )
        assert (freed.count, freed.early, freed.unknown, freed.granted) == self.model.settle(messages)
        self.compare(freed.granted)
        return freed.count

    def reported_status(self, i: int, how: str) -> str | None:
        """Return the terminal status in a message: the stored one, none, or a wrong one."""
        status = self.model.runs[i].status if i in self.model.runs else "completed"
        if how == "wrong":
            return "failed" if status == "completed" else "completed"
        return status if how == "stored" and status in TERMINAL else None

    @precondition(lambda self: self.has(*UNSTARTED, "running"))
    @rule(which=some)
    def cancel(self, which: list[int]) -> None:
        self.request_cancel({self.choose(n, *UNSTARTED, "running") for n in which})

    @rule(ref=st.sampled_from([*BOUNDS]), limit=limits, paused=st.sampled_from([False] * 4 + [True]))
    def put_action(self, ref: str, limit: int | None, paused: bool) -> None:
        self.compare(self.put(ref, limit, paused))

    # --- the workers

    @rule(n=nth, off=attempt_offsets, which=some, late=rarely)
    @precondition(lambda self: self.has("scheduled"))
    def claim(self, n: int, off: int, which: list[int], late: bool) -> None:
        worker = self.worker(n)
        self._pass_time(worker, late)
        self.claim_as(worker, self.offers("scheduled", which, off))

    @rule(n=nth, off=attempt_offsets, which=some, status=ends, retry=st.booleans(), late=rarely)
    @precondition(lambda self: self.has("running"))
    def finish(self, *, n: int, off: int, which: list[int], status: Status, retry: bool, late: bool) -> None:
        worker = self.worker(n)
        self._pass_time(worker, late)
        self.finish_as(worker, self.offers("running", which, off), status, retry)

    @rule(n=nth, which=some, status=ends, retry=st.booleans(), meanwhile=st.integers(0, 3))
    @precondition(lambda self: self.has("scheduled"))
    def work(self, n: int, which: list[int], status: Status, retry: bool, meanwhile: int) -> None:
        """A healthy worker from claim to finish, with a possible event in between."""
        worker = self.worker(n)
        self.renew(worker)
        offers = self.offers("scheduled", which, 0)
        self.claim_as(worker, offers)
        if meanwhile == 0:
            self.request_cancel({o.execution_id for o in offers})
        elif meanwhile == 1:
            self.end_time_to_live({o.execution_id for o in offers})
        self.finish_as(worker, offers, status, retry)

    @rule(n=nth, which=some, off=attempt_offsets, late=rarely)
    @precondition(lambda self: self.has("running"))
    def hand_back(self, n: int, which: list[int], off: int, late: bool) -> None:
        worker = self.worker(n)
        offers = self.offers("running", which, off)
        if late:
            self.end_time_to_live({o.execution_id for o in offers})
            self.expire()
        back = self.do(self.protocol.record(worker).hand_back(offers))
        expected_back = {
            o.execution_id for o in offers if self.model.hand_back(worker, o.execution_id, o.attempt)
        }
        assert back == expected_back
        self.compare()

    def _pass_time(self, worker: str, late: bool) -> None:
        if late:
            self.lose_lease_of(worker)

    def claim_as(self, worker: str, offers: list[Offer]) -> None:
        outcomes = self.do(self.protocol.record(worker).exchange(offers))
        assert [_verdict(s) for s in outcomes] == [
            self.model.claim(worker, o.execution_id, o.attempt) for o in offers
        ]
        self.compare()

    def finish_as(self, worker: str, offers: list[Offer], status: Status, retry: bool) -> None:
        again = retry and status is Status.FAILED
        reports = [
            Report(
                execution_id=o.execution_id, attempt=o.attempt, status=status,
                result_json="1" if status is Status.COMPLETED else None,
                retry_delay_seconds=60.0 if again else None,
            )
            for o in offers
        ]  # fmt: skip
        outcomes = self.do(self.protocol.record(worker).exchange(reports))
        assert [_verdict(s) for s in outcomes] == [
            self.model.finish(worker, o.execution_id, o.attempt, status.value, again) for o in offers
        ]
        self.compare()

    # --- leases

    @rule(n=nth)
    def lose_lease(self, n: int) -> None:
        self.lose_lease_of(self.worker(n))

    @rule(n=nth)
    def renew_lease(self, n: int) -> None:
        self.renew(self.worker(n))

    @precondition(lambda self: len(self.model.workers) < 9)
    @rule()
    def restart(self) -> None:
        self.start_worker()
        self.compare()

    @precondition(lambda self: self.has("running") and not self.model.live_workers >= set(self.model.workers))
    @rule()
    def reclaim(self) -> None:
        reclaimed = self.do(self.protocol.reclaim())
        found = (reclaimed.returned, reclaimed.ended, reclaimed.granted)
        assert found == self.model.reclaim(RECLAIMS_MAX)
        self.do(self.protocol.cancels_published(*self.do(self.protocol.due_cancels())))
        # A lost worker continues to call; two others must be there to do the work.
        while len(set(self.model.workers[-2:]) - self.model.lost_workers) < 2:
            self.start_worker()
        self.compare(reclaimed.granted)

    @precondition(
        lambda self: any(run.cancel_requested and run.status == "running" for run in self.model.runs.values())
    )
    @rule(which=some)
    def enforce_cancels(self, which: list[int]) -> None:
        overdue = {self.choose(n, "running") for n in which} & self.model.runs.keys()
        past = "overdue_at = overdue_at - interval '2 h'"
        self.do(self.update(f"UPDATE slot SET {past} WHERE execution_id = ANY ($1)", overdue))
        to_cancel, ended = self.do(self.protocol.stop_overdue(3600, cancels_max=_CANCELS_MAX))
        found = ([m.execution_id for m in to_cancel], [m.execution_id for m in ended])
        assert found == self.model.stop_overdue(overdue, _CANCELS_MAX)
        assert all(m.status is Status.CANCELLED for m in ended)
        self.compare()

    def lose_lease_of(self, worker: str) -> None:
        self.do(self.protocol.lose_lease(worker))
        self.model.live_workers.discard(worker)

    def renew(self, worker: str) -> None:
        alive = worker not in self.model.lost_workers
        assert self.do(self.protocol.renew(worker)) == (alive, False)
        if alive:
            self.model.live_workers.add(worker)

    # --- time and the watchdog

    @precondition(lambda self: self.has("delayed"))
    @rule(which=some)
    def wake_due(self, which: list[int]) -> None:
        due = {self.choose(n, "delayed") for n in which} & self.model.delayed.keys()
        self.model.delayed.update(dict.fromkeys(due, True))
        self.do(self.update(f"UPDATE delayed SET due_at = {_EARLIEST} WHERE execution_id = ANY ($1)", due))
        woken, grants = self.do(self.protocol.wake_due())
        assert ([m.execution_id for m in woken], ids_in(grants)) == self.model.wake_due()
        self.compare(ids_in(grants))

    @precondition(lambda self: bool(self.model.deadlines))
    @rule(which=some)
    def let_time_to_live_end(self, which: list[int]) -> None:
        self.end_time_to_live({self.choose(n, *UNSTARTED, "running") for n in which})

    @rule()
    def expire_due(self) -> None:
        self.expire()

    @rule(calls=st.integers(1, 4))
    def move_windows(self, calls: int) -> None:
        """Raise the bounds of the sweeps, which changes nothing else."""
        for _ in range(calls):
            self.do(self.protocol.column("SELECT turnstile.move_slot_window(0, 0)"))
            self.do(self.protocol.column("SELECT turnstile.move_due_window(0, 0, 2)"))
        self.compare()

    @rule()
    def delete_idle_queues(self) -> None:
        assert self.do(self.protocol.delete_idle_queues()) == self.model.delete_idle_queues()
        self.compare()

    @rule()
    def watch(self) -> None:
        """The watchdog's view: unsettled completions, unclaimed offers, grantable queues."""
        slots = self.model.slots()
        due = self.do(self.protocol.due_completions())
        assert due == sorted({i for i, ended in slots.items() if ended} | self.model.unpublished)
        unclaimed = sorted(i for i in slots if self.model.runs[i].status == "scheduled")
        assert self.do(self.protocol.missing_offers({"default": 0})) == (
            unclaimed if self.model.live_workers else []
        )
        grantable = self.model.grantable()
        queue_ids = self.do(self.protocol.grantable_queues())
        assert len(queue_ids) == len(grantable)
        granted = ids_in(self.do(self.protocol.grant(*queue_ids)))
        assert granted == self.model.grant(grantable)
        self.compare(granted)

    # --- the end

    def heal(self) -> None:
        """Bring every execution to its end, within one round per execution of a queue."""
        for ref in BOUNDS:
            self.compare(self.put(ref, 2, False))
        for worker in self.model.workers:
            self.lose_lease_of(worker)
        self.start_worker()
        for _ in range(_ROUNDS_MAX):
            if self._is_drained():
                return
            self._one_round()
        raise AssertionError(f"not drained: {self.model.runs}")

    def _one_round(self) -> None:
        if self.has("running"):
            self.reclaim()
        self.settle_all()
        self.wake_due([*range(1, 1000)])
        self.expire()
        self.watch()
        worker = self.model.workers[-1]
        self.renew(worker)
        scheduled = [i for i, run in self.model.runs.items() if run.status == "scheduled"]
        offers = [self.offer(i) for i in sorted(scheduled)]
        self.claim_as(worker, offers)
        self.finish_as(worker, offers, Status.COMPLETED, False)
        self.settle_all()

    def _is_drained(self) -> bool:
        ended = all(run.status in TERMINAL for run in self.model.runs.values())
        return ended and not self.model.slots() and not self.model.unpublished


def _verdict(answer: Claim | WorkerVerdict | Finished) -> str:
    match answer:
        case Claim():
            return "claimed"
        case Finished():
            return answer.verdict.value
        case _:
            return answer.value
