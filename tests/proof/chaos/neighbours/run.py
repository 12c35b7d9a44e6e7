"""One seed of neighbours from nothing to a verdict: stand up, load, disturb, let it drain, judge.

In: a seed and the shape of the run. Out: an `Outcome`. Its folder stays only where something is wrong. Next:
`report`.
"""

import asyncio
import pickle
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aio_pika
import asyncpg

from tests.integration.webhooks.receiver import Receiver, receiving
from tests.proof.chaos.blame import given_up_without_cause
from tests.proof.chaos.draining import drained
from tests.proof.chaos.findings import findings, left_behind
from tests.proof.chaos.folder import RECORDING, run_folder
from tests.proof.chaos.ground import VHOST, Ground, Layout, standing_ground
from tests.proof.chaos.load import Submit
from tests.proof.chaos.neighbours.broker import MADE_UP_FROM
from tests.proof.chaos.neighbours.load import LIMITS, plan_load, send_all
from tests.proof.chaos.neighbours.neighbour import Access
from tests.proof.chaos.neighbours.process import Disturbed, Plan, read_disturbed
from tests.proof.chaos.neighbours.schedule import Shape
from tests.proof.chaos.neighbours.verdict import TOLD_SECONDS, Suffered, missed, starts_of
from tests.proof.chaos.neighbours.watching import Watch, memory_limits, watching
from tests.proof.chaos.outcome import audit
from tests.proof.chaos.record import RECORD, RECORD_VARIABLE
from tests.proof.chaos.recorder import read, worker_names
from tests.proof.chaos.run import DRAIN_BOUND_SECONDS, Course
from tests.proof.chaos.sent import Log
from tests.proof.history.figures import Figures, figures
from tests.proof.history.recording import Recording
from tests.proof.history.tolerances import Tolerances, Violation, Window
from tests.proof.history.verdict import violations
from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.localservers.processes import ServerProcess
from turnstile.localservers.services import environment_without
from turnstile.localservers.threads import to_the_end

LAYOUT: Final = Layout(
    workers={
        "worker-1": {"TURNSTILE_WORKER_POOLS": "default"},
        "worker-2": {"TURNSTILE_WORKER_POOLS": "default"},
        "worker-3": {"TURNSTILE_WORKER_POOLS": "crowd,taken"},
    },
    actions_module="tests.proof.chaos.neighbours.actions",
    # Receivers stand on loopback. All else is as it is delivered: faster healing would hide what it heals.
    settings={"TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true", "TURNSTILE_RETENTION_IDLE_KEYS": "5s"},
    has_proxies=False,
)
_ANSWERED_SECONDS: Final = 60.0
_DRAIN_PATIENCE_SECONDS: Final = 3 * DRAIN_BOUND_SECONDS
_SETTLING: Final = timedelta(seconds=5.0)
_STARTING_SECONDS: Final = 2.0
"""So long the neighbours' process may take to come up; the load begins then too."""
_LOOK_SECONDS: Final = 0.1
_PLAN, _EVENTS = "neighbours.json", "neighbours.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one seed."""

    seed: int
    shape: Shape
    course: Course
    suffered: Suffered
    figures: Figures
    violations: list[str]
    folder: Path
    """Gone, unless there are violations, or it was to be kept."""

    @property
    def replay(self) -> str:
        """The command that runs the same load and neighbours again."""
        return (
            f"make chaos CHAOS_MODE=neighbours CHAOS_SEED={self.seed} CHAOS_SEEDS=1 "
            f"CHAOS_SECONDS={self.shape.seconds:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run while it goes on."""

    ground: Ground
    plan: Plan
    steps: Sequence[Submit]
    receiver: Receiver
    log: Log

    @property
    def callbacks(self) -> frozenset[int]:
        """Who of the steady load has a receiver."""
        return frozenset(step.number for step in self.steps if "callback_url" in step.body)


async def run_neighbours(seed: int, shape: Shape, *, patience: float, keep: bool = False) -> Outcome:
    """Run one seed; raises what the harness or a server could not do. `keep`: the folder stays anyway."""
    with run_folder(f"chaos-neighbours-{seed}", keep=keep) as folder:
        async with receiving() as receiver, standing_ground(folder.path, LAYOUT) as ground:
            run = _Run(
                ground=ground,
                plan=_plan(ground, seed, shape),
                steps=plan_load(seed, shape.seconds, receiver.url),
                receiver=receiver,
                log=Log(),
            )
            async with watching(ground) as watch:
                course, disturbed = await _take_course(run)
            outcome = await _judged(run, course, disturbed, watch, patience)
        outcome.violations.extend(left_behind(folder.path))
        folder.violations = outcome.violations
        return outcome


def _plan(ground: Ground, seed: int, shape: Shape) -> Plan:
    access = Access(
        seed=seed,
        amqp_url=ground.amqp_url,
        management_url=ground.servers.rabbitmq.management_url,
        vhost=VHOST,
        database_url=ground.database_url,
        http_urls=[executor.url for executor in ground.executors],
    )
    return Plan(shape=shape, began_at=datetime.now(UTC) + timedelta(seconds=_STARTING_SECONDS), access=access)


async def _take_course(run: _Run) -> tuple[Course, list[Disturbed]]:
    """Load and disturb the system, and let it drain."""
    now = asyncio.get_running_loop().time
    began = now() + (run.plan.began_at - datetime.now(UTC)).total_seconds()
    sending = asyncio.create_task(send_all(run.ground, run.steps, run.log, began), name="load")
    try:
        disturbed = await _disturb(run)
        over_at = max(now(), began + run.plan.shape.seconds)
        async with asyncio.timeout(over_at - now() + _ANSWERED_SECONDS):
            await asyncio.shield(sending)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    left = await _drained(run)
    course = Course(
        began_at=run.plan.began_at,
        injected=[],
        log=run.log,
        drained_in_seconds=now() - over_at,
        left=left,
    )
    await _told_all(run)
    return course, disturbed


async def _disturb(run: _Run) -> list[Disturbed]:
    """Let the neighbours' process do what is planned; raises ServerFailed with its log where it could not."""
    folder = run.ground.folder
    run.plan.write(folder / _PLAN)
    (folder / _EVENTS).touch()
    process = await asyncio.to_thread(
        ServerProcess.start,
        "neighbours",
        [sys.executable, "-m", "tests.proof.chaos.neighbours.process", _PLAN, _EVENTS],
        folder=folder,
        environment={
            **environment_without("TURNSTILE_", importable=Path.cwd()),
            RECORD_VARIABLE: str(folder / RECORD),
        },
        user=None,
        last_signal=signal.SIGKILL,
        grace_seconds=1.0,
    )
    try:
        while process.is_running:
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await to_the_end(process.stop, signal.SIGKILL, 1.0)
    return read_disturbed(run.plan, folder / _EVENTS)


async def _admitted(run: _Run, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Wait until no request is on its way any more, those of the neighbours included."""
    deadline = asyncio.get_running_loop().time() + _DRAIN_PATIENCE_SECONDS
    async with await aio_pika.connect(run.ground.amqp_url) as broker:
        channel = await broker.channel()
        while asyncio.get_running_loop().time() < deadline:
            queue = await channel.declare_queue(EXECUTOR_REQUESTS, passive=True)
            admitted = await connection.fetchval("SELECT count(*) FROM execution WHERE metadata ? 'mark'")
            if admitted >= len(run.steps) and not queue.declaration_result.message_count:
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def _drained(run: _Run) -> dict[str, int]:
    async def nothing_to_restore() -> None:
        raise AssertionError("nobody changes a limit here")

    limits: defaultdict[str, int | None] = defaultdict(lambda: None, LIMITS)
    connection = await asyncpg.connect(run.ground.database_url)
    try:
        await _admitted(run, connection)
        return await drained(connection, limits, nothing_to_restore, patience_seconds=_DRAIN_PATIENCE_SECONDS)
    finally:
        await connection.close()


async def _told_all(run: _Run) -> None:
    """Wait until the receiver has heard of every end, or of none for longer than it may take."""
    deadline = asyncio.get_running_loop().time() + 2 * TOLD_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if len({received.path for received in run.receiver.received}) >= len(run.callbacks):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _judged(
    run: _Run, course: Course, disturbed: list[Disturbed], watch: Watch, patience: float
) -> Outcome:
    ground = run.ground
    heard = await read(ground.database_url, ground.amqp_url, ground.folder, run.log)
    # Strangers tell ends too, and the exchange passes them on.
    recording = replace(heard, told=[told for told in heard.told if told.execution_id < MADE_UP_FROM])
    (ground.folder / RECORDING).write_bytes(pickle.dumps(recording))
    names = await worker_names(ground.database_url)
    suffered = Suffered(
        starts=starts_of(recording, run.log, run.plan.began_at),
        disturbed=disturbed,
        watch=watch,
        told=run.receiver.received,
        callbacks=run.callbacks,
    )
    return Outcome(
        seed=run.plan.access.seed,
        shape=run.plan.shape,
        course=course,
        suffered=suffered,
        figures=figures(recording),
        violations=[
            *missed(suffered, memory_limits(), patience=patience),
            *_undone(run, disturbed),
            *findings(ground, course, patience=patience),
            *given_up_without_cause(recording, course, names),
            *await audit(ground),
            *await _promises_broken(ground, recording, disturbed, patience),
        ],
        folder=ground.folder,
    )


def _undone(run: _Run, disturbed: Sequence[Disturbed]) -> list[str]:
    done = {each.disturbance.number for each in disturbed}
    return [
        f"neighbour {planned.number}, {planned}, was planned and did not come to an end"
        for planned in run.plan.disturbances
        if planned.number not in done
    ]


async def _promises_broken(
    ground: Ground, recording: Recording, disturbed: Sequence[Disturbed], patience: float
) -> list[str]:
    """Hold the history against P1 to P7. A neighbour may delay itself, and nobody else."""
    strict = Tolerances(
        idle_seconds=patience * 2.0,
        leak_seconds=patience * 3.0,
        reclaim_seconds=0.0,
        overlap_seconds=patience * 1.0,
    )
    windows = [
        Window(began_at=each.began_at, ended_at=each.ended_at + _SETTLING, what=str(each.disturbance))
        for each in disturbed
    ]
    lenient = replace(strict, windows=windows)
    steady = await _steady_ids(ground.database_url)
    broken = [
        *(v for v in violations(recording, tolerances=strict) if _is_of(v, steady)),
        *violations(recording, tolerances=lenient),
    ]
    return list(dict.fromkeys(map(str, broken)))


def _is_of(violation: Violation, ids: tuple[frozenset[int], frozenset[int]]) -> bool:
    executions, queues = ids
    return violation.execution_id in executions or violation.queue_id in queues


async def _steady_ids(database_url: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ids of the executions of the steady load, and of its queues."""
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "SELECT e.id, e.queue_id FROM execution e JOIN action a ON a.id = e.action_id"
            " WHERE a.ref LIKE 'steady.%'"
        )
    finally:
        await connection.close()
    return frozenset(row["id"] for row in rows), frozenset(row["queue_id"] for row in rows)
