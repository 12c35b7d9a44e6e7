"""One seed of neighbours: start, load, disturb, drain, check.

In: a seed and the shape of the run. Out: an `Outcome`. Its folder stays only if something is wrong.
"""

import asyncio
import pickle
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import aio_pika

from tests.integration.webhooks.receiver import Receiver, receiving
from tests.proof.chaos.environment import (
    VHOST,
    Environment,
    Layout,
    drain,
    run_environment,
    run_folder,
    running_environment,
)
from tests.proof.chaos.findings import Course, findings, left_behind
from tests.proof.chaos.history import Window, Witnessed, tables_of, witnessed
from tests.proof.chaos.judge import Bounds, Statistics, judged, replayed_queues
from tests.proof.chaos.load import Submit
from tests.proof.chaos.neighbours.kinds import UNKNOWN_FROM
from tests.proof.chaos.neighbours.load import NUMBERS, plan_load, send_all
from tests.proof.chaos.neighbours.monitor import Observations, memory_limits, monitoring
from tests.proof.chaos.neighbours.neighbour import Access, Disturbed, Plan
from tests.proof.chaos.neighbours.process import read_disturbed
from tests.proof.chaos.neighbours.schedule import Shape
from tests.proof.chaos.neighbours.verdict import DELIVERED_SECONDS, Effects, details, missed, starts_of
from tests.proof.chaos.run import ANSWERED_SECONDS, DRAIN_DEADLINE_SECONDS, Outcome, sending
from tests.proof.chaos.submitters import SubmitLog
from tests.support.history import session_of
from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.localservers.processes import ServerProcess, run_in_thread

LAYOUT: Final = Layout(
    workers={
        "worker-1": {"TURNSTILE_WORKER_POOLS": "default"},
        "worker-2": {"TURNSTILE_WORKER_POOLS": "default"},
        "worker-3": {"TURNSTILE_WORKER_POOLS": "crowd"},
    },
    actions_module="tests.proof.chaos.neighbours.actions",
    # Receivers are on loopback. All else is the default: faster healing would hide what it heals.
    settings={"TURNSTILE_WEBHOOK_ALLOW_PRIVATE": "true"},
    has_proxies=False,
)
_WORKER_SLOTS: Final = 2 * 10
"""Of the pool `default`, by the default concurrency."""
_SETTLING: Final = timedelta(seconds=5.0)
_STARTING_SECONDS: Final = 2.0
"""Time for the neighbours' process to start; the load begins then too."""
_POLL_SECONDS: Final = 0.1
_PLAN, _EVENTS = "neighbours.plan.pickle", "neighbours.pickle"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run in progress."""

    environment: Environment
    plan: Plan
    steps: Sequence[Submit]
    receiver: Receiver
    log: SubmitLog

    @property
    def callbacks(self) -> frozenset[int]:
        """The numbers of the submissions with a webhook receiver."""
        return frozenset(step.number for step in self.steps if "callback_url" in step.body)


async def run_neighbours(seed: int, shape: Shape, *, patience: float, keep: bool = False) -> Outcome:
    """Run one seed; raises what the harness or a server could not do. `keep`: the folder stays anyway."""
    with run_folder(f"chaos-neighbours-{seed}", keep=keep) as folder:
        async with receiving() as receiver, running_environment(folder.path, LAYOUT) as environment:
            run = _Run(
                environment=environment,
                plan=_plan(environment, seed, shape),
                steps=plan_load(seed, shape.seconds, receiver.url),
                receiver=receiver,
                log=SubmitLog(),
            )
            async with monitoring(environment) as observed:
                course, disturbed = await _run_course(run)
            outcome = await _checked(run, course, disturbed, observed, patience)
        outcome.violations.extend(left_behind(folder.path))
        folder.violations = outcome.violations
        return outcome


def _plan(environment: Environment, seed: int, shape: Shape) -> Plan:
    access = Access(
        seed=seed,
        amqp_url=environment.amqp_url,
        management_url=environment.servers.rabbitmq.management_url,
        vhost=VHOST,
        database_url=environment.database_url,
    )
    return Plan(shape=shape, began_at=datetime.now(UTC) + timedelta(seconds=_STARTING_SECONDS), access=access)


async def _run_course(run: _Run) -> tuple[Course, list[Disturbed]]:
    """Load and disturb the system, and let it drain."""
    now = asyncio.get_running_loop().time
    began = now() + (run.plan.began_at - datetime.now(UTC)).total_seconds()
    async with sending(send_all(run.environment, run.steps, run.log, began)) as answered:
        disturbed = await _disturb(run)
        over_at = max(now(), began + run.plan.shape.seconds)
        await answered(over_at - now() + ANSWERED_SECONDS)
    database_url = run.environment.database_url
    await _all_admitted(run)
    left = await drain(database_url, NUMBERS, None, deadline_seconds=DRAIN_DEADLINE_SECONDS)
    course = Course(
        began_at=run.plan.began_at,
        injected=[],
        log=run.log,
        drained_in_seconds=now() - over_at,
        left=left,
    )

    def all_delivered() -> bool:
        return len({received.path for received in run.receiver.received}) >= len(run.callbacks)

    with suppress(AssertionError):
        await until(all_delivered, deadline_seconds=2 * DELIVERED_SECONDS)
    return course, disturbed


async def _disturb(run: _Run) -> list[Disturbed]:
    """Run the neighbours' process; raises ServerFailed with its log if it fails."""
    folder = run.environment.folder
    (folder / _PLAN).write_bytes(pickle.dumps(run.plan))
    (folder / _EVENTS).touch()
    process = await asyncio.to_thread(
        ServerProcess.start,
        "neighbours",
        [sys.executable, "-m", "tests.proof.chaos.neighbours.process", _PLAN, _EVENTS],
        folder=folder,
        environment=run_environment(folder),
        user=None,
        last_signal=signal.SIGKILL,
        grace_seconds=1.0,
    )
    try:
        while process.is_running:
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await run_in_thread(process.stop, signal.SIGKILL, 1.0)
    return read_disturbed(folder / _EVENTS)


async def _all_admitted(run: _Run) -> None:
    """Wait until no request is in flight any more, those of the neighbours included."""
    async with (
        session_of(run.environment.database_url) as connection,
        await aio_pika.connect(run.environment.amqp_url) as broker,
    ):
        channel = await broker.channel()

        async def are_admitted() -> bool:
            queue = await channel.declare_queue(EXECUTOR_REQUESTS, passive=True)
            admitted = await connection.fetchval(
                "SELECT count(*) FROM ledger.execution WHERE metadata ? 'tag'"
            )
            return admitted >= len(run.steps) and not queue.declaration_result.message_count

        with suppress(AssertionError):
            await until(are_admitted, deadline_seconds=DRAIN_DEADLINE_SECONDS)


async def _checked(
    run: _Run, course: Course, disturbed: list[Disturbed], observed: Observations, patience: float
) -> Outcome:
    environment = run.environment
    seen = await witnessed(environment.database_url, environment.amqp_url, environment.folder, run.log)
    # Neighbours publish completions too, and the exchange forwards them.
    published = {number: found for number, found in seen.published.items() if number < UNKNOWN_FROM}
    seen = replace(seen, published=published)
    effects = Effects(
        starts=starts_of(seen, run.plan.began_at),
        disturbed=disturbed,
        observed=observed,
        received=run.receiver.received,
        callbacks=run.callbacks,
    )
    broken, statistics = _judged(seen, disturbed, patience)
    done = {each.disturbance.number for each in disturbed}
    return Outcome(
        mode="neighbours",
        seed=run.plan.access.seed,
        seconds=run.plan.shape.seconds,
        course=course,
        timeline=[(each.began_at, each.ended_at, str(each)) for each in disturbed],
        details=details(effects, memory_limits()),
        statistics=statistics,
        violations=[
            *missed(effects, memory_limits(), patience=patience),
            *(
                f"neighbour {planned.number}, {planned}, was planned and did not end"
                for planned in run.plan.disturbances
                if planned.number not in done
            ),
            *await findings(environment, course, seen),
            *broken,
        ],
        folder=environment.folder,
    )


def _judged(seen: Witnessed, disturbed: Sequence[Disturbed], patience: float) -> tuple[list[str], Statistics]:
    """Judge the history. A neighbour may delay its own executions only: queues of others have no excuse."""
    strict = Bounds(idle_seconds=patience * 2.0, overlap_seconds=patience * 1.0, worker_slots=_WORKER_SLOTS)
    windows = [Window(began_at=each.began_at, ended_at=each.ended_at + _SETTLING) for each in disturbed]
    broken, statistics = judged(seen, replace(strict, windows=windows))
    # What a stopped worker has waits for its lease.
    tables = tables_of(seen, overlap_seconds=strict.overlap_seconds, windows=windows)
    steady, _ = replayed_queues(seen, tables, strict)
    broken += [what for ref, what in steady if ref.startswith("steady.")]
    return list(dict.fromkeys(broken)), statistics
