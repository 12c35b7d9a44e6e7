"""One seed of faults: start, load, break, heal, drain, check, clean up.

In: a seed and the shape of a run. Out: an `Outcome`. Its folder, with the logs of all processes, stays only
if something is wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from tests.proof.chaos.environment import Environment, drain, run_folder, running_environment
from tests.proof.chaos.faults import inject
from tests.proof.chaos.findings import Course, bounds_of, findings, left_behind
from tests.proof.chaos.history import witnessed
from tests.proof.chaos.judge import Statistics, judged
from tests.proof.chaos.load import NUMBERS, Submit, plan_load, restored
from tests.proof.chaos.schedule import Shape, plan_faults
from tests.proof.chaos.submitters import HttpSubmitter, SubmitLog, send_all

DRAIN_DEADLINE_SECONDS: Final = 110.0
"""What is left so long after the last fault and the end of the load is stuck. A slot that is idle meanwhile
is a violation of its own."""
ANSWERED_SECONDS: Final = 60.0
"""Longest time from the last fault until every submitter has its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one seed."""

    mode: Literal["faults", "neighbours"]
    seed: int
    seconds: float
    """Duration of the load."""
    course: Course
    statistics: Statistics
    violations: list[str]
    timeline: Sequence[tuple[datetime, datetime, str]]
    """What was injected, or who disturbed: beginnings, ends, and a line about each."""
    details: Sequence[str] = ()
    """Further lines of the report."""
    folder: Path
    """Deleted, unless there are violations or the command line says to keep it."""

    @property
    def replay(self) -> str:
        """The command that runs the same load and schedule again."""
        return (
            f"make chaos CHAOS_MODE={self.mode} CHAOS_SEED={self.seed} CHAOS_SEEDS=1 "
            f"CHAOS_SECONDS={self.seconds:g}"
        )


async def run_seed(seed: int, shape: Shape, *, patience: float, keep: bool = False) -> Outcome:
    """Run one seed; raises what the harness or a server could not do. `keep`: the folder stays anyway."""
    with run_folder(f"chaos-seed-{seed}", keep=keep) as folder:
        async with running_environment(folder.path) as environment:
            course = await _run_course(environment, seed, shape)
            outcome = await _checked(environment, course, seed, shape, patience)
        outcome.violations.extend(left_behind(folder.path))
        folder.violations = outcome.violations
        return outcome


async def _run_course(environment: Environment, seed: int, shape: Shape) -> Course:
    """Load and break the system, heal it, and let it drain."""
    now = asyncio.get_running_loop().time
    log = SubmitLog()
    http_urls = [executor.url for executor in environment.executors]
    steps = plan_load(seed, shape.seconds)

    async def restore() -> None:
        async with asyncio.timeout(ANSWERED_SECONDS):
            await HttpSubmitter(environment.http, http_urls, log).send(restored(), now())

    await restore()
    began, began_at = now(), datetime.now(UTC)
    async with sending(send_all(environment.amqp_url, environment.http, http_urls, steps, log)) as answered:
        injected = await inject(environment, plan_faults(seed, shape))
        # What is submitted after the last fault cannot be done before it.
        over_at = max(now(), began + shape.seconds)
        try:
            await answered(ANSWERED_SECONDS)
        except TimeoutError:
            planned = sum(isinstance(step, Submit) for step in steps)
            log.refused.append(
                f"{ANSWERED_SECONDS:g} s after the last fault the submitters still send: {len(log.sent)} of"
                f" {planned} sent, {log.confirmed} confirmed"
            )
    await restore()
    left = await drain(environment.database_url, NUMBERS, restore, deadline_seconds=DRAIN_DEADLINE_SECONDS)
    return Course(
        began_at=began_at,
        injected=injected,
        log=log,
        drained_in_seconds=now() - over_at,
        left=left,
    )


@asynccontextmanager
async def sending(load: Coroutine[Any, Any, None]) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
    """Send a load beside the block; lends a wait, with a deadline in seconds, until all is answered."""
    task = asyncio.create_task(load, name="load")

    async def answered(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await asyncio.shield(task)

    try:
        yield answered
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _checked(
    environment: Environment, course: Course, seed: int, shape: Shape, patience: float
) -> Outcome:
    seen = await witnessed(environment.database_url, environment.amqp_url, environment.folder, course.log)
    broken, statistics = judged(seen, bounds_of(course.injected, patience=patience))
    return Outcome(
        mode="faults",
        seed=seed,
        seconds=shape.seconds,
        course=course,
        statistics=statistics,
        violations=[*await findings(environment, course, seen), *broken],
        timeline=[(each.began_at, each.healed_at, str(each.fault)) for each in course.injected],
        folder=environment.folder,
    )
