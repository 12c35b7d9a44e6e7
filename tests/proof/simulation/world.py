"""The world of one story: all processes and servers, its faults, and the invariants checked on the way.

`run` returns what happened. It ends when everything that was accepted has ended and nothing is under way any
more, or at a deadline.
"""

import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.proof.queue_manager.recount import Violation
from tests.proof.queue_manager.rules import Memory, turn
from tests.proof.simulation.at_workers import AtWorkers
from tests.proof.simulation.broker import COMPLETIONS, HEARTBEATS, LeaderBroker, Rabbit, WorkerBroker
from tests.proof.simulation.clients import Clients
from tests.proof.simulation.database import Postgres, SimulatedStore
from tests.proof.simulation.faults import KINDS, Fault, Kind
from tests.proof.simulation.loop import Hang, SimulatedLoop
from tests.proof.simulation.processes import Process, Processes, SimulatedClock, State, Trap
from tests.proof.simulation.runner import NS, SimulatedRunner, Witness
from tests.proof.simulation.schedules import define, is_left
from tests.proof.simulation.story import POOL, Story
from tests.support.snapshots import snapshot_of
from turnstile.common.worker_protocol import Offer, ToSession
from turnstile.executor.leader import turns
from turnstile.executor.leader.leadership import Leader
from turnstile.executor.leader.loading import state_of
from turnstile.executor.leader.records import DefinitionRow
from turnstile.executor.leader.turns import Leadership, Reload, Taken, Turns
from turnstile.executor.queue_manager.decide import GRANTS_MAX
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.state import State as QueueManager
from turnstile.stress.recording import InjectedFault
from turnstile.stress.scenario import FaultKind
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.ports import Ports
from turnstile.worker.core.process import WorkerProcess

_STANDSTILL_SECONDS: Final = 60.0
"""Nothing ends for so long after the last request and fault: what is left is stuck."""
_LOOK_SECONDS: Final = 0.25
_CHECKED_MAX: Final = 150
"""With more executions that have not ended, decisions are not checked."""
_COMPARED: Final = 0.02
"""Share of the rests of a leader at which its memory is compared with the rows."""
_COMPARED_ROWS: Final = 2
"""For each end so many open executions are compared: else a long backlog is compared again and again."""


class WatchedTurns(Turns):
    """The turns of a leader: their decisions are checked, and each error is noted that a load survives."""

    world: "World"
    _memory = Memory()
    _checked: QueueManager | None = None

    def _decide(self, lead: Leadership, inputs: Sequence[Input]) -> Decisions:
        """Decide by the rules of the explorer, unless so much lives that each check would take long."""
        if self._checked is not lead.state:
            self._checked, self._memory = lead.state, Memory(checks_runs=False)
        if sum(each.enqueued - each.completed for each in lead.state.actions.values()) > _CHECKED_MAX:
            # What passed meanwhile is not known: shares and starts are counted anew.
            self._memory = Memory(checks_runs=False)
            return super()._decide(lead, inputs)
        memory = self._memory

        def checked(
            state: QueueManager, told: Iterable[Input], now: float, *, grants_max: int = GRANTS_MAX
        ) -> Decisions:
            return turn(state, memory, told, now, self._broken, grants_max=grants_max)

        with patch.object(turns, "decide", checked):
            return super()._decide(lead, inputs)

    def _broken(self, violation: Violation) -> None:
        self.world.found(f"RULE {violation}")

    async def _turn(self, lead: Leadership, taken: Taken) -> None:
        try:
            await super()._turn(lead, taken)
        except Reload as reload:
            if reload.__cause__ is not None:
                self.world.raised(reload.__cause__)
            raise


@dataclass(slots=True)
class Outcome:
    """What happened in a world."""

    story: Story
    ended_at: float
    steps: int
    is_quiet: bool
    """Everything had ended at the end."""
    findings: list[str]
    """Broken invariants, in the order of discovery."""
    postgres: Postgres
    clients: Clients
    witness: Witness
    injected: list[InjectedFault] = field(default_factory=list)
    faults: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    """How much there was of runs; see `AtWorkers.counts`."""


class Executor:
    """An executor: a process after another."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.starts = 0
        self.process: Process
        self.leader: Leader
        self.start()

    def start(self) -> None:
        world = self.world
        self.starts += 1
        name = f"executor-{self.number}.{self.starts}"
        self.process = process = world.process(name)
        store = SimulatedStore(world.postgres, process)
        broker = LeaderBroker(world.rabbit, process)
        clock = SimulatedClock(process)
        watched = WatchedTurns(name, store, broker, clock)
        watched.world = world
        self.leader = Leader(watched)
        process.at_rest = lambda: world.compare(self.leader)
        world.run_in(process, self.leader.run())


class WorkerHost:
    """A worker: a process after another."""

    def __init__(self, world: "World", number: int, concurrency: int) -> None:
        self.world = world
        self.number = number
        self.concurrency = concurrency
        self.starts = 0
        self.process: Process
        self.worker: WorkerProcess
        self.start()

    def start(self) -> None:
        world = self.world
        self.starts += 1
        self.process = process = world.process(f"worker-{self.number}.{self.starts}")
        if world.story.clock_rates:
            process.clock_rate = world.story.clock_rates[self.number]
        ports = Ports(
            broker=WorkerBroker(world.rabbit, process),
            clock=SimulatedClock(process),
            runner=SimulatedRunner(world.witness, process),
            identities=Identities(self),
        )
        lease = world.story.lease_seconds
        config = WorkerConfig(
            name=f"worker-{self.number}", pools=(POOL,), concurrency=self.concurrency, lease_seconds=lease,
            heartbeat_seconds=lease / 6, drain_seconds=1.0, grace_seconds=0.3, killed_seconds=0.3,
            leave_seconds=2.0, run_gather_seconds=0.01,
        )  # fmt: skip
        self.worker = WorkerProcess(ports, config)
        world.run_in(process, self._serve(process))

    async def _serve(self, process: Process) -> None:
        await self.worker.run()
        # It has left, or must end: its host starts it again.
        process.loop.after(0.0, process.kill)
        process.loop.after(0.2, self._restart, process)

    def _restart(self, process: Process) -> None:
        if self.process is process:
            self.start()

    @property
    def id(self) -> str | None:
        worker = self.worker.worker
        return None if worker is None else worker.session.worker_id


class Identities:
    """Names that are never given twice, as a port of the worker."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host

    def worker_id(self) -> str:
        self._host.world.ids += 1
        worker_id = f"w{self._host.number}-{self._host.world.ids}"
        self._host.world.worker_ids[worker_id] = self._host.number
        return worker_id

    def secret(self) -> str:
        self._host.world.ids += 1
        return f"secret-{self._host.world.ids}"


class World:
    """One story, running."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.random = Random(story.seed ^ 0x5EED)
        self.loop = SimulatedLoop(Processes())
        self.rabbit = Rabbit(self.loop, self.random)
        self.postgres = Postgres(self.loop, self.random)
        self.postgres.write_seconds = story.write_seconds
        self.postgres.has_packs = story.has_packs
        scripts = {plan.number: plan.script for plan in story.requests}
        self.witness = Witness(self.loop, self.random, scripts)
        self.clients = Clients(self.loop, self.random, self.rabbit, self.postgres, story)
        self.ids = 0
        self.worker_ids: dict[str, int] = {}
        self.injected: list[InjectedFault] = []
        self.findings = self.postgres.findings
        self.at_workers = AtWorkers(lambda: self.loop.now, self.found)
        self.rabbit.on_taken = self._taken
        self.witness.on_start = self._started
        self.faults = 0
        self.healed_at = 0.0
        """When the last fault was over."""
        self.is_quiet = False
        self._compared_rows = 0
        self._left = 0
        self._moved_at = 0.0
        """When the number of executions that have not ended changed last."""
        for resource in story.resources:
            self.postgres.tables.definitions["resource", resource.name] = DefinitionRow(
                kind="resource", name=resource.name, body=resource.body
            )
        for action in story.actions:
            body = action.body(limit=action.limit)
            self.postgres.tables.definitions["action", action.ref] = DefinitionRow(
                kind="action", name=action.ref, body=body
            )
        for plan in story.schedules:
            define(plan, self.postgres)
        self.executors = [Executor(self, number) for number in range(story.executors)]
        self.workers = [WorkerHost(self, number, size) for number, size in enumerate(story.workers)]
        self.clients.worker_id = lambda number: self.workers[number % len(self.workers)].id
        self.clients.on_drained = self._drained

    def _taken(self, session: str, messages: Sequence[ToSession]) -> None:
        _, worker_id, number = session.split(" ")
        self.at_workers.takes(worker_id, int(number), messages)

    def _started(self, process: Process, offer: Offer) -> Callable[[bool], None]:
        host = next(each for each in self.workers if each.process is process)
        return self.at_workers.starts(host.id or "", offer)

    def process(self, name: str) -> Process:
        """Return a new process with a clock of its own."""
        process = Process(self.loop, self.random, name, boot_offset=1000.0 * self.random.random())
        process.at_outcome = self._goes_wrong
        return process

    def run_in(self, process: Process, main: Any) -> None:
        """Run the main coroutine of a process; an exception in it is a finding."""
        process.start(self._watched(process, main))

    async def _watched(self, process: Process, main: Any) -> None:
        try:
            await main
        except Exception as error:  # noqa: BLE001 - whatever ends a process is a finding
            if process.is_alive:
                self.raised(error, process.name)

    def raised(self, error: BaseException, where: str = "leader") -> None:
        """Note an error of the product."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        frames = traceback.extract_tb(error.__traceback__)
        text = " < ".join(
            f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in reversed(frames[-4:])
        )
        self.found(f"{where} raised {type(error).__name__}: {error} ({text})")

    def found(self, what: str) -> None:
        self.postgres.found(what)

    def run(self) -> Outcome:
        """Run to the end."""
        for fault in self.story.faults:
            self.loop.at(fault.at, self._inject, fault)
        self.clients.start()
        last = max((plan.at for plan in self.story.requests), default=0.0)
        self.healed_at = last
        self.loop.after(_LOOK_SECONDS, self._look)
        try:
            self.loop.run_world()
        except Hang as hang:
            self.found(f"hang: {hang}")
        for process in self._processes():
            process.kill()
        self._bury()
        return Outcome(
            story=self.story, ended_at=self.loop.now, steps=self.loop.steps, is_quiet=self.is_quiet,
            findings=self.findings, postgres=self.postgres, clients=self.clients, witness=self.witness,
            injected=self.injected, faults=self.faults, runs=self.at_workers.counts,
        )  # fmt: skip

    def _processes(self) -> list[Process]:
        return [*(each.process for each in self.executors), *(each.process for each in self.workers)]

    def _bury(self) -> None:
        for process in self._processes():
            process.bury()
        self.loop.clear()
        self.loop.close()

    def _look(self) -> None:
        """End the world once nothing is left to do."""
        if self._is_over() and self.loop.now > self.healed_at:
            self.is_quiet = True
            self._compare_at_the_end()
            self.loop.stop_world()
        elif self.loop.now > max(self.healed_at, self._moved_at) + _STANDSTILL_SECONDS:
            self.loop.stop_world()
        else:
            left = len(self.postgres.tables.open_ids)
            if left != self._left:
                self._left, self._moved_at = left, self.loop.now
            self.loop.after(_LOOK_SECONDS, self._look)

    def _is_over(self) -> bool:
        tables = self.postgres.tables
        return (
            self.clients.are_done and not tables.open_ids and not tables.inbox and not tables.events
            and not tables.early_cancels and not self.witness.running and not is_left(self.postgres)
            and not any(
                queue.messages or any(consumer.unacknowledged for consumer in queue.consumers)
                for name, queue in self.rabbit.queues.items()
                if name != HEARTBEATS
            )
        )  # fmt: skip

    # Memory and rows.

    def compare(self, leader: Leader) -> None:
        """A leader rests: now and then compare its memory with what a load would find."""
        tables = self.postgres.tables
        if self.random.random() < _COMPARED and self._compared_rows <= _COMPARED_ROWS * len(tables.ended):
            self._compared_rows += len(tables.open_ids)
            self._compare(leader)

    def _compare(self, leader: Leader) -> None:
        lead, tables = leader.leadership, self.postgres.tables
        if lead is None or (tables.epoch, tables.executor_id) != (lead.epoch, leader.executor_id):
            return
        try:
            other, _ = state_of(self.postgres.loaded())
            other.now = max(other.now, lead.state.now)
            mine, found = snapshot_of(lead.state), snapshot_of(other)
        except Exception as error:  # noqa: BLE001 - a load that fails is a finding
            self.raised(error, "load")
            return
        for name, value in mine.items():
            if value != found[name]:
                self.found(f"memory differs from a load in {name}: {_difference(value, found[name])}")

    def _compare_at_the_end(self) -> None:
        for executor in self.executors:
            if executor.process.state is State.RUNNING and executor.process.is_waiting:
                self._compare(executor.leader)

    # Faults.

    def _leading(self) -> Executor:
        leader = self.postgres.leader
        for each in self.executors:
            if each.process is leader:
                return each
        return self.executors[0]

    def _executor(self, fault: Fault) -> Executor:
        return self._leading() if fault.target < 0 else self.executors[fault.target % len(self.executors)]

    def _inject(self, fault: Fault) -> None:
        self.faults += 1
        until = self.loop.now + max(fault.seconds, 0.0)
        kind = fault.kind
        if kind in ("kill executor", "pause executor"):
            executor = self._executor(fault)
            self._strike(executor, executor.process, fault)
            return
        if kind in ("kill worker", "pause worker"):
            worker = self.workers[fault.target % len(self.workers)]
            self._strike(worker, worker.process, fault)
            return
        if kind.endswith(("executor", "worker")) or "without" in kind:
            until = self._hinder(fault)
        elif kind in ("publish", "write", "take over"):
            self._break_next_call(fault)
            return
        elif kind == "sessions terminated":
            self.postgres.terminate(self._executor(fault).process)
        else:
            until = max(until, self._break_server(fault))
        self._note(fault, None, until)

    def _drained(self, number: int, since: float) -> None:
        """A worker was drained by an operator since then: its slots were idle."""
        self.healed_at = max(self.healed_at, self.loop.now)
        self.injected.append(
            InjectedFault(
                kind=FaultKind.KILL_WORKER, target=f"drain {number}", began_at=round(since * NS),
                healed_at=round(self.loop.now * NS), lost_worker=None,
            )
        )  # fmt: skip

    def _note(self, fault: Fault, lost: str | None, until: float) -> None:
        self.healed_at = max(self.healed_at, until)
        self.injected.append(
            InjectedFault(
                kind=KINDS.get(fault.kind, FaultKind.KILL_WORKER), target=f"{fault.kind} {fault.target}",
                began_at=round(self.loop.now * NS), healed_at=round(until * NS), lost_worker=lost,
            )
        )  # fmt: skip

    def _strike(self, host: Executor | WorkerHost, process: Process, fault: Fault) -> None:
        """Kill or pause a process, at once or at one of its next calls, and start or resume it later."""

        def spring() -> None:
            if process.state is not State.RUNNING:
                return
            if fault.kind.startswith("kill"):
                process.kill()
                self.loop.after(fault.seconds, restart)
            else:
                process.pause()
                self.loop.after(fault.seconds, process.resume)
            lost = host.id if isinstance(host, WorkerHost) else None
            self._note(fault, lost, self.loop.now + fault.seconds)

        def restart() -> None:
            if host.process is process:
                host.start()

        if process.state is not State.RUNNING:
            return
        if fault.calls < 0:
            spring()
        else:
            kind: Any = "kill" if fault.kind.startswith("kill") else "pause"
            self.healed_at = max(self.healed_at, self.loop.now + 1.0)
            process.arm(Trap(calls=fault.calls, is_after=fault.is_after, kind=kind, spring=spring))

    def _hinder(self, fault: Fault) -> float:
        """Slow a process down, cut it off, or stop it; return when that is over."""
        loop, kind = self.loop, fault.kind
        worker = self.workers[fault.target % len(self.workers)]
        process = self._executor(fault).process if "executor" in kind else worker.process
        until = loop.now + fault.seconds
        if kind.startswith("slow"):
            process.slowness = 0.2
            loop.at(until, setattr, process, "slowness", 0.0)
        elif kind.endswith("without broker"):
            self.rabbit.partition(process)
            loop.at(until, self.rabbit.heal, process)
        elif kind.endswith("without database"):
            self.postgres.cut[process] = None
            loop.at(until, self.postgres.cut.pop, process, None)
        elif process.state is State.RUNNING:
            process.context.copy().run(worker.worker.stop)
        return until

    def _break_next_call(self, fault: Fault) -> None:
        """Let the next call of a process go wrong; the fault is noted when that call is made."""
        if fault.target >= 100:
            process = self.workers[(fault.target - 100) % len(self.workers)].process
        else:
            process = self._executor(fault).process
        call = {"take over": "take_over"}.get(fault.kind, fault.kind)
        if call == "publish" and fault.target < 100 and self.random.random() < 0.3:
            call = "publish_events"
        seconds = min(fault.seconds, 1.0) if fault.outcome == "part" else fault.seconds
        process.outcomes.setdefault(call, deque()).append((fault.outcome, seconds))

    def _goes_wrong(self, call: str, seconds: float) -> None:
        kinds: dict[str, Kind] = {"write": "write", "take_over": "take over"}
        fault = Fault(at=self.loop.now, kind=kinds.get(call, "publish"), target=-1)
        self._note(fault, None, self.loop.now + seconds)

    def _break_server(self, fault: Fault) -> float:
        """Break a server; return when that is over."""
        if fault.kind == "worker clock steps":
            self.workers[fault.target % len(self.workers)].process.wall_offset += fault.seconds
            return self.loop.now
        if fault.kind.startswith(("database", "locked", "failover")):
            return self._break_database(fault)
        self._break_broker(fault)
        return self.loop.now + fault.seconds

    def _break_broker(self, fault: Fault) -> None:
        loop, rabbit = self.loop, self.rabbit
        until = loop.now + fault.seconds
        match fault.kind:
            case "broker out":
                if rabbit.is_up:
                    rabbit.stop()
                    loop.at(until, rabbit.start)
            case "connections break":
                for process in self._processes():
                    rabbit.break_connections(process)
            case "slow confirms":
                rabbit.confirm_seconds = 0.3
                loop.at(until, setattr, rabbit, "confirm_seconds", 0.001)
            case "listener hangs":
                rabbit.listeners_hang_until = max(rabbit.listeners_hang_until, until)
            case "purge completions" | "purge heartbeats":
                rabbit.purge(COMPLETIONS if "completions" in fault.kind else HEARTBEATS)
            case _:
                queue = rabbit.queues[COMPLETIONS if "completions" in fault.kind else HEARTBEATS]
                queue.drop = 0.5
                loop.at(until, setattr, queue, "drop", 0.0)

    def _break_database(self, fault: Fault) -> float:
        loop, postgres = self.loop, self.postgres
        until = loop.now + fault.seconds
        match fault.kind:
            case "database out":
                if postgres.is_up:
                    postgres.stop()
                    loop.at(until, postgres.start)
            case "database frozen":
                postgres.freeze(fault.seconds)
            case "locked rows":
                for execution_id in list(postgres.tables.open_ids)[:5]:
                    postgres.lock_row(execution_id)
                loop.at(until, postgres.unlock_rows)
            case "failover":
                postgres.begin_standby()
                loop.at(until, self._fail_over)
            case _:
                postgres.clock_offset += fault.seconds
                return loop.now
        return until

    def _fail_over(self) -> None:
        if self.postgres.standby is not None:
            self.postgres.fail_over()
            self.clients.repeat_changes()


def _difference(mine: Any, found: Any) -> str:
    """Return the first differences of two values, in a line."""
    if isinstance(mine, dict) and isinstance(found, dict):
        keys = [key for key in {**mine, **found} if mine.get(key) != found.get(key)]
        text = "; ".join(f"{key}: {mine.get(key)!r}, and a load finds {found.get(key)!r}" for key in keys[:2])
        return text[:1600]
    return f"{mine!r}, and a load finds {found!r}"[:600]
