"""The actions of the crash tests. Each logs its runs in the run log."""

import asyncio
from pathlib import Path

from tests.proof.history.run_log import log_run, log_while_blocking, log_while_running
from turnstile.worker import Context, TemporaryError, action, rate, use

RUN_SECONDS = 0.01
TALKING_SECONDS = 1.5
"""Longer than the interval at which a worker writes logs."""
LICENCES = "crash-licences"
DESKS = "crash-desks"
DEFAULT = "default"
"""The pool of the worker processes."""
UNSERVED = "unserved"
"""A pool without a worker process: the tests claim there, and do what no worker should."""

LONELY = "lonely"
"""A pool whose workers come and go."""


@action("crash.one", max_concurrent=1)
async def one(context: Context) -> int:
    """Run alone."""
    return await _run(context)


@action("crash.two", max_concurrent=2)
def two(context: Context) -> int:
    """Run in a child process, two at once."""
    log_while_blocking(context.execution_id, context.attempt, RUN_SECONDS)
    return context.execution_id


@action("crash.free")
async def free(context: Context) -> int:
    """Run without a limit."""
    return await _run(context)


@action("crash.keyed", max_concurrent=1, concurrency_key="/customer")
async def keyed(context: Context, customer: str) -> str:
    """Run alone among those of one customer."""
    await _run(context)
    return customer


@action("crash.retried", max_concurrent=1, retry={"max_attempts": 3, "delay": "100ms", "factor": 1})
async def retried(context: Context) -> int:
    """Fail once."""
    await _run(context)
    if context.attempt == 1:
        raise TemporaryError("planned", delay=0.1)
    return context.attempt


@action("crash.rated", rate=rate(5, "500ms"))
async def rated(context: Context) -> int:
    """Start when its rate allows it."""
    return await _run(context)


@action("crash.licensed", uses=[use(LICENCES, units=2), use(DESKS)])
async def licensed(context: Context) -> int:
    """Run with two licences and one desk."""
    return await _run(context)


@action("crash.seated", uses=[use(DESKS)])
async def seated(context: Context) -> int:
    """Run with one desk."""
    return await _run(context)


@action("crash.holding", uses=[use(DESKS)], pool=UNSERVED)
async def holding() -> None:
    """Take a desk, and be cancelled."""


@action("crash.talking")
async def talking(context: Context) -> None:
    """Log, report progress, and run until both are written."""
    context.logger.info("it runs")
    context.progress(1, 2)
    await log_while_running(context.execution_id, context.attempt, TALKING_SECONDS)


@action("crash.lonely", pool=LONELY)
async def lonely() -> None:
    """Wait for a worker, and be cancelled."""


@action("crash.gated")
async def gated(context: Context, gate: str) -> None:
    """Run until the gate is open."""
    log_run("start", context.execution_id, context.attempt)
    while not await asyncio.to_thread(Path(gate).exists):
        await asyncio.sleep(0.05)
    log_run("stop", context.execution_id, context.attempt)


@action("crash.unserved", pool=UNSERVED)
async def unserved() -> None:
    """Be claimed by a test."""


@action("crash.handed-over", max_concurrent=1, pool=UNSERVED)
async def handed_over(context: Context) -> int:
    """Run alone, by a worker that starts after a crash, or be claimed by a test."""
    return await _run(context)


@action("crash.abandoned", pool=UNSERVED, on_worker_lost="abandon")
async def abandoned() -> None:
    """Be claimed by a test, and abandoned with its worker."""


async def _run(context: Context) -> int:
    await log_while_running(context.execution_id, context.attempt, RUN_SECONDS)
    return context.execution_id
