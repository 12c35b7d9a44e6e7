"""Throughput: no-op executions over ten actions, compared with the no-logic loop on the same servers.

Out: executions per second of each, their ratio, and the CPU time of each process per execution. A race takes
prebuilt requests and returns the seconds from the first publish to the last settled execution.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import asyncpg

from benchmarks.actions import LIMITED, LOOSE, UNLIMITED
from benchmarks.client import database_session, publishing, requests, settled, submit
from benchmarks.no_logic import CREATE_TABLE, SETTLED, declare_loop
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes, cpu_seconds, running_process, running_system
from benchmarks.waiting import DidNotHappen, until
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.message import Outgoing

_LIMITED: Final = "limit 4"
_LOOSE: Final = "limit 10,000"
_UNLIMITED: Final = "no limit"
_LOOP: Final = "no logic"
_SHORT_LOOP: Final = "no logic, no notice"
_COLUMNS: Final = (_LIMITED, _LOOSE, _UNLIMITED, _LOOP, _SHORT_LOOP)
_OURS: Final = (_LIMITED, _UNLIMITED)
_WARM_UP_MAX: Final = 500
# Messages per execution: persistent, and advisory ones without a bound queue.
_MESSAGES: Final = {
    _LIMITED: (3, 4),
    _LOOSE: (3, 4),
    _UNLIMITED: (3, 4),
    _LOOP: (4, 0),
    _SHORT_LOOP: (3, 0),
}


Race = Callable[[Sequence[Outgoing]], Awaitable[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A system under test, and its processes by part."""

    race: Race
    pids: Mapping[str, Sequence[int]]


@asynccontextmanager
async def turnstile_system(servers: Servers, *, deadline_seconds: float) -> AsyncIterator[Contestant]:
    """Yield Turnstile with two workers."""
    async with (
        servers.deployment("system") as deployment,
        running_system(deployment) as system,
        publishing(deployment.amqp_url) as publisher,
        database_session(deployment.database_url) as connection,
    ):

        async def race(messages: Sequence[Outgoing]) -> float:
            before: int = await connection.fetchval(
                "SELECT coalesce(sum(total_completed), 0)::bigint FROM turnstile.current_queue"
            )
            began_at = await submit(publisher, messages)
            ended_at = await settled(connection, before + len(messages), deadline_seconds=deadline_seconds)
            await _require_completed(connection, before + len(messages))
            return ended_at - began_at

        yield Contestant(race=race, pids=system.pids())


async def _require_completed(connection: "asyncpg.Connection[asyncpg.Record]", count: int) -> None:
    completed = await connection.fetchval("SELECT count(*) FROM execution WHERE status = 'completed'")
    if completed != count:
        raise DidNotHappen(f"{count} executions completed, {completed} did")


@asynccontextmanager
async def no_logic_loop(
    servers: Servers, *, notify: bool, deadline_seconds: float
) -> AsyncIterator[Contestant]:
    """Yield one process like the executor and two like workers.

    `notify`: the fourth message, which the client receives, is sent too.
    """
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(servers.deployment("loop"))
        settings = {"BENCH_NOTIFY": "yes" if notify else "no"}
        connection = await stack.enter_async_context(database_session(deployment.database_url))
        await connection.execute(CREATE_TABLE)
        publisher = await stack.enter_async_context(publishing(deployment.amqp_url, declare_loop))
        processes = (("executor", "executor"), ("worker-1", "worker"), ("worker-2", "worker"))
        pids = [
            await stack.enter_async_context(running_process(name, role, deployment, settings))
            for name, role in processes
        ]
        notices = await stack.enter_async_context(_notices(deployment.amqp_url)) if notify else None

        async def race(messages: Sequence[Outgoing]) -> float:
            before: int = await connection.fetchval("SELECT count(*) FROM loop_execution")
            began_at = await submit(publisher, messages)
            if notices is not None:
                async with asyncio.timeout(deadline_seconds):
                    await _receive(notices, len(messages))
                return time.time() - began_at
            return await _last_settled(connection, before + len(messages), deadline_seconds) - began_at

        # All processes are connected and consuming before the first measurement.
        await race(requests(["bench.loop"], 100))
        yield Contestant(race=race, pids={"executor": pids[:1], "workers": pids[1:]})


@asynccontextmanager
async def _notices(amqp_url: str) -> AsyncIterator[Subscription]:
    consumers = ConsumerConnection(amqp_url, name="bench client consumer")
    task = asyncio.create_task(consumers.run(), name="bench-consumer")
    try:
        yield consumers.subscribe(SETTLED, prefetch=2000, declare=declare_loop)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _receive(subscription: Subscription, count: int) -> None:
    while count > 0:
        deliveries = await subscription.next_batch(500)
        subscription.ack(deliveries)
        count -= len(deliveries)


async def _last_settled(
    connection: "asyncpg.Connection[asyncpg.Record]", count: int, deadline_seconds: float
) -> float:
    async def enough() -> bool:
        found: int = await connection.fetchval("SELECT count(settled_at) FROM loop_execution")
        return found >= count

    await until(enough, f"{count} settled rows", deadline_seconds=deadline_seconds, pause_seconds=0.05)
    at: float = await connection.fetchval(
        "SELECT extract(epoch FROM max(settled_at))::double precision FROM loop_execution"
    )
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its duration, and the CPU time of each part."""

    seconds: float
    cpu_seconds: Mapping[str, float]

    def cpu_of(self, part: str) -> float:
        """Return the CPU seconds of a part, or of all."""
        return sum(self.cpu_seconds.values()) if part == "all" else self.cpu_seconds[part]


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run all contestants in turn, for a number of rounds."""
    deadline_seconds = sizes.deadline_seconds
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(turnstile_system(servers, deadline_seconds=deadline_seconds))
        loop, short = [
            await stack.enter_async_context(
                no_logic_loop(servers, notify=notify, deadline_seconds=deadline_seconds)
            )
            for notify in (True, False)
        ]
        contestants = {
            _LIMITED: (system, LIMITED),
            _LOOSE: (system, LOOSE),
            _UNLIMITED: (system, UNLIMITED),
            _LOOP: (loop, LIMITED),
            _SHORT_LOOP: (short, LIMITED),
        }
        for contestant, refs in contestants.values():
            await contestant.race(requests(refs, min(_WARM_UP_MAX, sizes.executions)))
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for _ in range(sizes.rounds):
            for name, (contestant, refs) in contestants.items():
                runs[name].append(await _timed(servers, contestant, refs, sizes.executions))
    return [section_of(runs, count=sizes.executions)]


async def _timed(servers: Servers, contestant: Contestant, refs: Sequence[str], count: int) -> Run:
    messages = requests(refs, count)
    parts = {**contestant.pids, **servers.pids}
    before = {name: cpu_seconds(pids) for name, pids in parts.items()}
    client_before = time.process_time()
    seconds = await contestant.race(messages)
    used = {name: cpu_seconds(pids) - before[name] for name, pids in parts.items()}
    return Run(seconds=seconds, cpu_seconds={**used, "client": time.process_time() - client_before})


def section_of(runs: Mapping[str, Sequence[Run]], *, count: int) -> Section:
    """Compare the runs of all contestants."""
    rates = {name: count / median(run.seconds for run in of) for name, of in runs.items()}
    rows = [
        Row(name="executions", unit="1/s", cells=rates, aims=(Aim(at_least=1500, columns=_OURS),)),
        Row(
            name="share of the no-logic loop",
            unit="",
            cells={name: rates[name] / rates[_LOOP] for name in _OURS},
            aims=(Aim(at_least=0.6),),
        ),
        Row(
            name="limit above the demand, share of no limit",
            unit="",
            cells={_LOOSE: rates[_LOOSE] / rates[_UNLIMITED]},
            aims=(Aim(at_least=0.9),),
        ),
        Row(
            name="share of the loop without notices",
            unit="",
            cells={name: rates[name] / rates[_SHORT_LOOP] for name in _OURS},
        ),
    ]
    for number, kind in enumerate(("persistent", "advisory")):
        sent = {name: float(each[number]) for name, each in _MESSAGES.items()}
        rows.append(Row(name=f"{kind} messages", unit="per execution", cells=sent))
    for part in (*next(iter(runs.values()))[0].cpu_seconds, "all"):
        cells = {name: 1e6 * median(run.cpu_of(part) for run in of) / count for name, of in runs.items()}
        rows.append(Row(name=f"CPU, {part}", unit="µs per execution", cells=cells))
    busy = {name: median(run.cpu_of("all") / run.seconds for run in of) for name, of in runs.items()}
    rows.append(Row(name="cores busy", unit=f"of {os.cpu_count()}", cells=busy))
    return Section(
        title=f"throughput: {count:,} no-op executions over 10 actions, 1 executor, 2 workers",
        columns=_COLUMNS,
        rows=tuple(rows),
        note="no logic: the same transport, batches and row writes, nothing decided",
    )
