"""Invariants of the protocol, checked while a directed story runs: a rule that is broken shows at once.

The watcher sees commits, messages, starts of runs and ends of processes. What holds for some kinds of stories
only, because others excuse it, is in `PROMISES`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, Final

from tests.proof.simulation.broker import HEARTBEATS
from tests.proof.simulation.processes import WALL, Process
from tests.proof.simulation.runner import NS, RunRecord, number_of, parameters_of
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    CancelAttempt,
    Dismissed,
    Heard,
    Heartbeat,
    Held,
    Leaving,
    Offers,
    Report,
    ToSession,
    Welcome,
)
from turnstile.executor.leader.ports import Probe
from turnstile.executor.leader.records import AdmittedRow, GrantRow, Turn
from turnstile.stress.recording import NEVER
from turnstile.worker.fence import Evidence

if TYPE_CHECKING:
    from tests.proof.simulation.interference import DirectedWorld
    from tests.proof.simulation.world import Outcome, WorkerHost

_TRAVEL_SECONDS: Final = 0.05
_TTL_SECONDS: Final = 0.15
"""How much later than its time to live something may start: an offer travels."""
_BEGINNING_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What a kind of stories does not excuse."""

    overlap_seconds: float | None = None
    """Two runs of one execution overlap for so long at most."""
    decided_seconds: float | None = None
    """A request that was confirmed is decided after so long."""
    gap_seconds: float | None = None
    """Two turns are not further apart."""
    takes_over: bool = True
    reclaims: bool = True
    """Workers may be lost."""
    abandons: bool = True
    """Executions may end because their worker was lost."""
    leaves: bool = False
    """A worker that drains leaves in time."""
    paused_seconds: float | None = None
    """How long after a pause something may still start: the recall may have to be sent again."""
    told_seconds: float | None = None
    """A worker that starts something of a queue knows a limit that was changed so long before."""
    waits_seconds: float | None = None
    """What is at a worker starts within so long, or goes back."""
    stopped_seconds: float | None = None
    """A cancel ends its execution within so long, whatever its worker does."""
    strays_seconds: float | None = None
    """For how long a worker may run what a failover has taken away from it."""


PROMISES: Final = {
    "calm": Promises(
        overlap_seconds=0.0,
        decided_seconds=1.0,
        gap_seconds=0.6,
        takes_over=False,
        reclaims=False,
        leaves=True,
    ),
    "leader dies": Promises(decided_seconds=8.0, gap_seconds=2.5),
    "leader without database": Promises(decided_seconds=12.0),
    "leader without broker": Promises(decided_seconds=8.0),
    "slow loads": Promises(decided_seconds=16.0),
    "listener hangs": Promises(decided_seconds=3.0, gap_seconds=1.7, takes_over=False, reclaims=False),
    "doubt": Promises(overlap_seconds=0.15),
    "doubt in a new session": Promises(overlap_seconds=0.15),
    "answers lost": Promises(reclaims=False, overlap_seconds=0.0),
    "recalls": Promises(reclaims=False, paused_seconds=2.0),
    "cut off": Promises(overlap_seconds=3.3),
    "drains": Promises(overlap_seconds=0.0),
    "drains in peace": Promises(overlap_seconds=0.0, reclaims=False, leaves=True),
    "leader alone without broker": Promises(reclaims=False),
    "ends lost": Promises(stopped_seconds=18.0),
    "broker out": Promises(abandons=False),
    "takeovers unheard": Promises(reclaims=False),
    "leader rests": Promises(reclaims=False),
    "identity": Promises(reclaims=False),
    "failover": Promises(strays_seconds=6.0),
    "lost epoch": Promises(strays_seconds=6.0),
    "runs": Promises(overlap_seconds=0.0, gap_seconds=0.6, takes_over=False, reclaims=False),
    "runs urgent": Promises(overlap_seconds=0.0, takes_over=False, reclaims=False),
    "runs changed": Promises(overlap_seconds=0.0, reclaims=False, paused_seconds=0.15, told_seconds=0.15),
    "runs told": Promises(overlap_seconds=0.0, takes_over=False, reclaims=False, told_seconds=0.04),
    "runs stalled": Promises(overlap_seconds=0.0, reclaims=False, waits_seconds=1.0),
    "runs returned": Promises(overlap_seconds=0.0, takes_over=False, reclaims=False),
    "runs with losses": Promises(reclaims=False, paused_seconds=2.0),
    "runs moved": Promises(overlap_seconds=0.0, reclaims=False),
}
"""By kind of story."""


class Starts(list[RunRecord]):
    """The records of all runs; each is checked when it starts."""

    def __init__(self, watcher: "Watcher") -> None:
        super().__init__()
        self._watcher = watcher

    def append(self, record: RunRecord) -> None:
        super().append(record)
        self._watcher.begins(record)


class Watcher:
    """All that is remembered of a world to check it."""

    def __init__(self, world: "DirectedWorld") -> None:
        self.world = world
        self.starts = Starts(self)
        self.grants: dict[int, tuple[Grant, str]] = {}
        """The last grant of each execution, and its worker."""
        self.promises = PROMISES.get(world.kind, Promises())
        self._reclaimed: dict[int, tuple[Grant, str]] = {}
        """The attempt of an execution that was lost with its worker."""
        self._cancelled: set[Grant] = set()
        self._dismissed: set[str] = set()
        self._cancelled_at: dict[int, float] = {}
        self._heard: dict[str, tuple[int, float]] = {}
        """Session and instant of the last heartbeat of each worker that reached the queue."""
        self._probed: dict[str, float] = {}
        """When the last probe for each worker got into the queue of heartbeats."""
        self._beats: dict[tuple[str, int], float] = {}
        """When each heartbeat reached the queue."""
        self._certain: dict[str, float] = {}
        """When the last heartbeat that was answered reached it."""
        self._answered: set[tuple[str, int]] = set()
        self._left: set[str] = set()
        self._ran: set[Grant] = set()
        self._paused: dict[str, float] = {}
        self._limits: dict[str, tuple[int | None, float]] = {}
        """Of each action that was defined anew, and since when."""
        self._epoch = 0
        self._committed_at: float | None = None

    def _found(self, what: str) -> None:
        self.world.found(what)

    @property
    def _now(self) -> float:
        return self.world.loop.now

    def _host(self, worker_id: str) -> "WorkerHost | None":
        """Return the process that is this worker now."""
        number = self.world.worker_ids.get(worker_id)
        if number is None or self.world.workers[number].id != worker_id:
            return None
        return self.world.workers[number]

    # Messages.

    def probes(self, queue: str, body: Any) -> None:
        """A probe is published."""
        if not isinstance(body, Probe) or queue != HEARTBEATS:
            return
        for executor in self.world.executors:
            lead = executor.leader.leadership
            if lead is not None and lead.epoch == body.epoch:
                for worker_id, session in lead.sessions._sessions.items():
                    if session.probe == body.number:
                        self._probed[worker_id] = self._now

    def sends(self, to: str, message: ToSession) -> None:
        """A message to a session is published."""
        _, worker_id, session = to.split(" ")
        match message.body:
            case Welcome():
                row = self.world.postgres.tables.workers.get(worker_id)
                if not self.world.story.loses_commits and (row is None or row.session != int(session)):
                    self._found(f"WELCOME session {session} of {worker_id} is not in the database")
            case CancelAttempt() as cancel:
                self._cancelled.add(cancel.grant)
            case Dismissed():
                self._dismissed.add(worker_id)
            case Offers() as offers:
                for offer in offers.offers:
                    self._offers(offer.execution_id, offer.grant)
            case _:
                pass

    def answers(self, worker_id: str, body: Any) -> None:
        """A message to a session is not lost."""
        if isinstance(body, Heard):
            sent_at = self._beats.get((worker_id, body.heartbeat), -inf)
            self._certain[worker_id] = max(self._certain.get(worker_id, -inf), sent_at)

    def _offers(self, execution_id: int, grant: Grant) -> None:
        before = self._reclaimed.get(execution_id)
        if before is None or before[0] == grant or before[0] in self._cancelled:
            return
        host = self._host(before[1])
        if host is not None and before[1] not in self._dismissed:
            worker = host.worker.worker
            if worker is not None and before[0] in worker.attempts:
                self._found(
                    f"CANCEL execution {execution_id} is offered as {grant}, and {before[1]} runs it as"
                    f" {before[0]} and was not asked to stop"
                )

    def arrives(self, body: Any) -> None:
        """A message of a worker reaches its queue."""
        match body:
            case Heartbeat(sender=sender, number=number):
                self._heard[sender.worker_id] = sender.session, self._now
                self._beats[sender.worker_id, number] = self._now
            case Report(body=Held(), sender=sender):
                self._answered.add((sender.worker_id, sender.session))
            case Report(body=Leaving(), sender=sender):
                self._left.add(sender.worker_id)
            case _:
                pass

    # Commits.

    def commits(self, turn: Turn) -> None:
        """A turn was committed."""
        self._follows(turn)
        for over in turn.attempts:
            if over.outcome == "reclaimed" and over.execution_id in self.grants:
                self._reclaimed[over.execution_id] = self.grants[over.execution_id]
        for worker in turn.workers:
            if worker.gone_at is not None:
                self._lost(worker.worker_id, turn)
        self._cancels(turn)
        for granted in turn.granted:
            self._granted(granted)
        for row in turn.definitions:
            if row.kind == "action" and row.body is not None:
                limit = row.body["max_concurrent"]
                if self._limits.get(row.name, (-1, 0.0))[0] != limit:
                    self._limits[row.name] = limit, self._now
            if row.kind == "action" and row.body is not None and row.body["paused"]:
                self._paused.setdefault(row.name, self._now)
            elif row.kind == "action":
                self._paused.pop(row.name, None)

    def _follows(self, turn: Turn) -> None:
        gap = self.promises.gap_seconds
        if gap is not None and self._committed_at is not None and self._now - self._committed_at > gap:
            self._found(f"GAP no turn was written for {self._now - self._committed_at:.2f} s")
        # At the beginning all executors take over, one after the other.
        is_changed = turn.epoch != self._epoch and self._now > _BEGINNING_SECONDS
        if is_changed and not self.promises.takes_over:
            self._found(f"TAKEOVER epoch {turn.epoch} follows {self._epoch} without a reason")
        self._epoch, self._committed_at = turn.epoch, self._now

    def _cancels(self, turn: Turn) -> None:
        for living in turn.live:
            if living.cancel_reason is not None:
                self._cancelled_at.setdefault(living.id, self._now)
        bound = self.promises.stopped_seconds
        for end in turn.ended:
            seconds = self._now - self._cancelled_at.get(end.id, self._now)
            if bound is not None and seconds > bound:
                self._found(f"OVERDUE execution {end.id} ends {seconds:.1f} s after its cancel")

    def _granted(self, row: GrantRow) -> None:
        for execution_id, counter in zip(row.execution_ids, row.counters, strict=True):
            self.grants[execution_id] = Grant(row.epoch, counter), row.worker_id
        worker = self.world.postgres.tables.workers.get(row.worker_id)
        if worker is None:
            self._found(f"HELLO {row.worker_id} is granted something and has no row")
        elif self.world.draining.get(row.worker_id, 0) not in (0, *self.world.postgres.tables.inbox):
            self._found(f"DRAIN {row.worker_id} is granted something and was asked to drain")
        elif (worker.worker_id, worker.session) not in self._answered and not self.world.story.loses_commits:
            self._found(f"HELLO {row.worker_id} is granted something and has not answered the welcome")

    def _lost(self, worker_id: str, turn: Turn) -> None:
        probed_at = self._probed.get(worker_id)
        if worker_id in self._left:
            for each in turn.attempts:
                if each.worker_id == worker_id and each.outcome == "reclaimed" and probed_at is None:
                    self._found(
                        f"LEAVE {worker_id} leaves, and execution {each.execution_id} is taken from it"
                    )
            return
        _, heard_at = self._heard.get(worker_id, (0, -1000.0))
        lease = self.world.story.lease_seconds
        if probed_at is None:
            self._found(f"LOST {worker_id} is lost without a probe")
        elif probed_at - lease < heard_at < probed_at:
            self._found(
                f"LOST {worker_id} is lost, its heartbeat of {heard_at:.3f} s was before the probe of"
                f" {probed_at:.3f} s"
            )

    # Runs and processes.

    def begins(self, record: RunRecord) -> None:
        """A run starts."""
        host = next(each for each in self.world.workers if each.process.name == record.worker)
        worker = host.worker.worker
        assert worker is not None
        certain_until = self._certain.get(worker.session.worker_id, -inf) + worker.lease.terms.certain_until(
            Evidence(renewed_at=0.0)
        )
        if self._now > certain_until + _TRAVEL_SECONDS:
            self._found(
                f"START execution {record.execution_id} starts at {record.worker}, its lease is not certain"
            )
        own = [grant for grant, each in worker.attempts._running.items() if each.run is None]
        for grant in own:
            if worker.attempts._running[grant].offer.execution_id == record.execution_id:
                if grant in self._ran:
                    self._found(f"GRANT {grant} of execution {record.execution_id} runs twice")
                self._ran.add(grant)
        row = self.world.postgres.tables.admitted.get(record.execution_id)
        if row is None:
            return
        is_clock_true = not self.world.postgres.clock_offset
        if row.expires_at is not None and record.attempt == 1 and is_clock_true:
            late = WALL + self._now - row.expires_at
            if late > _TTL_SECONDS:
                self._found(
                    f"START execution {record.execution_id} starts {late:.2f} s after its time to live"
                )
        since, bound = self._paused.get(row.action_ref), self.promises.paused_seconds
        if since is not None and bound is not None and self._now - since > bound:
            self._found(
                f"START execution {record.execution_id} starts, its action is paused since {since:.2f} s"
            )

        self._told(worker.session.worker_id, row, record.execution_id)

    def _told(self, worker_id: str, row: AdmittedRow, execution_id: int) -> None:
        """A worker starts by the limit that is in force, unless that is new."""
        limit, since = self._limits.get(row.action_ref, (None, inf))
        bound = self.promises.told_seconds
        if bound is None or self._now - since < bound or row.action_ref in self._paused:
            return
        name = f"{row.action_ref}/{row.key}" if row.key else row.action_ref
        at_once = self.world.at_workers.at_once(worker_id, name)
        if at_once != limit:
            self._found(
                f"TOLD execution {execution_id} starts at {worker_id}, that runs {at_once} of {name} at once,"
                f" and the limit is {limit} since {since:.2f} s"
            )

    def died(self, process: Process) -> None:
        """A process ends, by itself or by a fault."""
        if self.world.is_over:
            return
        for host in getattr(self.world, "workers", ()):
            if host.process is not process or host.worker.worker is None:
                continue
            worker = host.worker.worker
            if worker.lease.is_over and not worker.attempts.idle.is_set():
                self._found(f"KILL {host.id} ends, its lease is over and it has not killed what it runs")
            is_kept = not worker.outbox.empty.is_set() and not worker.lease.is_over
            if self.promises.leaves and worker.session.is_leaving and is_kept:
                self._found(f"DRAIN {host.id} ends, and its last reports are not committed")

    # The end.

    def at_the_end(self, outcome: "Outcome") -> None:
        """Check what only the end shows."""
        for what in (
            *(self._leftovers() if outcome.is_quiet else ()), *self._overlaps(), *self._of_workers(),
            *self._late(), *self._strays(), *self._early(), *self._letters(outcome), *self._waits(),
        ):  # fmt: skip
            self._found(what)

    def _waits(self) -> Iterator[str]:
        bound, (seconds, execution_id) = self.promises.waits_seconds, self.world.at_workers.longest_wait
        if bound is not None and seconds > bound:
            yield f"STALLED execution {execution_id} waits at its worker for {seconds:.2f} s"

    def _letters(self, outcome: "Outcome") -> Iterator[str]:
        poisons = self.world.poisons
        letters = sum(each.body.get("x-error-code") == "invalid_message" for each in outcome.clients.letters)
        if letters < poisons:
            yield f"POISON {poisons} requests were refused, and {letters} are dead letters"
        if letters > poisons:
            yield f"POISON {letters} dead letters, and only {poisons} requests are poison"

    def _of_workers(self) -> Iterator[str]:
        """Yield what the loss of workers has cost, where none may be lost."""
        tables, promises = self.world.postgres.tables, self.promises
        for execution_id, own in tables.attempts.items():
            for each in own:
                if each.outcome == "reclaimed" and not promises.reclaims:
                    yield f"RECLAIM execution {execution_id} is reclaimed from {each.worker_id}, which lived"
        for execution_id, row in tables.ended.items():
            if row.status is Status.ABANDONED and not promises.abandons:
                yield f"ABANDON execution {execution_id} is abandoned: {row.error}"

    def _leftovers(self) -> Iterator[str]:
        tables = self.world.postgres.tables
        for name in ("grants", "live", "waiting"):
            rows = getattr(tables, name)
            if rows:
                yield f"LEFT {len(rows)} rows of {name} stay for ever, such as {next(iter(rows.values()))}"

    def _overlaps(self) -> Iterator[str]:
        seconds = self.promises.overlap_seconds
        if seconds is None:
            return
        runs: dict[int, list[RunRecord]] = {}
        for each in self.starts:
            runs.setdefault(each.execution_id, []).append(each)
        for execution_id, own in runs.items():
            for first, second in pairwise(own):
                over = (first.stopped_at - second.started_at) / NS
                if over > seconds:
                    yield (
                        f"OVERLAP execution {execution_id} runs at {first.worker} for"
                        f" {min(over, 999.0):.2f} s beside {second.worker}"
                    )

    def _strays(self) -> Iterator[str]:
        seconds = self.promises.strays_seconds
        if seconds is None:
            return
        tables, over_at = self.world.postgres.tables, self.world.healed_at + seconds
        for each in self.starts:
            row = tables.admitted.get(each.execution_id)
            is_stray = row is None or row.parameters != parameters_of(each.number)
            if is_stray and each.started_at / NS < self.world.healed_at < over_at < each.stopped_at / NS:
                yield f"STRAY execution {each.execution_id} does not exist, and runs at {each.worker}"

    def _late(self) -> Iterator[str]:
        seconds = self.promises.decided_seconds
        if seconds is None:
            return
        tables = self.world.postgres.tables
        created: dict[bytes, int] = {}
        for execution_id, row in tables.admitted.items():
            created.setdefault(row.parameters, tables.created_at[execution_id])
        for number, order in self.world.clients.orders.items():
            if order.plan.is_invalid or order.confirmed_at == NEVER:
                continue
            at = created.get(parameters_of(number), round(self._now * NS))
            if at - order.confirmed_at > seconds * NS:
                yield f"LATE request {number} was decided after {(at - order.confirmed_at) / NS:.2f} s"

    def _early(self) -> Iterator[str]:
        """Yield what was not cancelled, though its cancel had come long before its request."""
        tables = self.world.postgres.tables
        requests = {plan.number: plan for plan in self.world.story.requests}
        early = {
            command.target
            for command in self.world.story.commands
            if command.kind == "cancel by key"
            and command.target in requests
            and command.at + 0.5 < requests[command.target].at
        }
        for execution_id, row in tables.ended.items():
            number = number_of(tables.admitted[execution_id].parameters)
            if number in early and (row.status is not Status.CANCELLED or row.attempt):
                yield (
                    f"EARLY execution {execution_id} is {row.status} in attempt {row.attempt}, and its"
                    " cancel was there before it"
                )
