"""Throughput: no-op executions over ten actions, compared with the no-logic loop on the same servers.

Out: the ratios of their rates, executions per second of each, the CPU time of each process and the WAL per
execution.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import asyncpg

from benchmarks.actions import LIMITED, LOOSE, UNLIMITED
from benchmarks.client import Load, database_session, load, publishing, require_no_failure, submit
from benchmarks.no_logic import CREATE_TABLE, SETTLED, declare_loop
from benchmarks.report import Aim, Row, Section
from benchmarks.run import WARM_UP_MAX, Contestant, Run, Runs, measured_system, rates_of, rows_of
from benchmarks.system import Servers, Sizes, running_loop
from benchmarks.waiting import until
from turnstile.common.broker.consumer import ConsumerConnection, Subscription

_LIMITED: Final = "limit 4"
_LOOSE: Final = "limit 10,000"
_UNLIMITED: Final = "no limit"
_LOOP: Final = "no logic"
_SHORT_LOOP: Final = "no logic, no notice"
_COLUMNS: Final = (_LIMITED, _LOOSE, _UNLIMITED, _LOOP, _SHORT_LOOP)
_OURS: Final = (_LIMITED, _UNLIMITED)
# Messages per execution: persistent, and advisory ones, which are not sent while no queue is bound to them.
_MESSAGES: Final = {
    _LIMITED: (3, 0),
    _LOOSE: (3, 0),
    _UNLIMITED: (3, 0),
    _LOOP: (4, 0),
    _SHORT_LOOP: (3, 0),
}


@asynccontextmanager
async def no_logic_loop(
    servers: Servers, *, notify: bool, deadline_seconds: float
) -> AsyncIterator[Contestant]:
    """Yield the no-logic loop.

    `notify`: the fourth message, which the client receives, is sent too.
    """
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(servers.deployment("loop"))
        connection = await stack.enter_async_context(database_session(deployment.database_url))
        await connection.execute(CREATE_TABLE)
        publisher = await stack.enter_async_context(publishing(deployment.amqp_url, declare_loop))
        settings = {"BENCH_NOTIFY": "yes" if notify else "no"}
        pids = await stack.enter_async_context(running_loop(deployment, settings))
        notices = await stack.enter_async_context(_notices(deployment.amqp_url)) if notify else None

        async def race(load: Load) -> float:
            before: int = await connection.fetchval("SELECT count(*) FROM loop_execution")
            began_at = await submit(publisher, load.messages)
            if notices is not None:
                async with asyncio.timeout(deadline_seconds):
                    await _receive(notices, load.count)
                return time.time() - began_at
            return await _last_settled(connection, before + load.count, deadline_seconds) - began_at

        # All processes are connected and consuming before the first measurement.
        await race(load(["bench.loop"], 100))
        yield Contestant(race=race, pids=pids)


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


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Run all contestants in turn, for a number of rounds."""
    deadline_seconds = sizes.deadline_seconds
    async with AsyncExitStack() as stack:
        turnstile = await stack.enter_async_context(
            measured_system(servers, "system", deadline_seconds=deadline_seconds)
        )
        system = turnstile.contestant()
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
            await contestant.race(load(refs, min(WARM_UP_MAX, sizes.executions)))
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for _ in range(sizes.rounds):
            for name, (contestant, refs) in contestants.items():
                runs[name].append(await turnstile.meter.race(contestant, load(refs, sizes.executions)))
        await require_no_failure(turnstile.system.api)
    return [section_of(runs, count=sizes.executions)]


def section_of(runs: Runs, *, count: int) -> Section:
    """Compare the runs of all contestants."""
    rates = rates_of(runs)
    rows = [
        Row(
            name="share of the no-logic loop",
            cells={name: rates[name] / rates[_LOOP] for name in _OURS},
            aims=(Aim(at_least=0.42, columns=(_LIMITED,)), Aim(at_least=0.78, columns=(_UNLIMITED,))),
        ),
        Row(
            name="limit above the demand, share of no limit",
            cells={_LOOSE: rates[_LOOSE] / rates[_UNLIMITED]},
            aims=(Aim(at_least=0.9),),
        ),
        Row(
            name="share of the loop without notices",
            cells={name: rates[name] / rates[_SHORT_LOOP] for name in _OURS},
        ),
        *rows_of(
            runs,
            aims={
                "executions": (
                    Aim(at_least=2200, columns=(_LIMITED,)),
                    Aim(at_least=4000, columns=(_UNLIMITED,)),
                ),
                "CPU, all": (Aim(at_most=820, columns=(_LIMITED,)), Aim(at_most=460, columns=(_UNLIMITED,))),
                "WAL": (Aim(at_most=1600, columns=_OURS),),
            },
        ),
    ]
    for number, kind in enumerate(("persistent", "advisory")):
        sent = {name: float(each[number]) for name, each in _MESSAGES.items()}
        rows.append(Row(name=f"{kind} messages", unit="per execution", cells=sent))
    return Section(
        title=f"throughput: {count:,} no-op executions over 10 actions, 1 executor, 2 workers",
        columns=_COLUMNS,
        rows=tuple(rows),
        note="no logic: the same transport, batches and row writes, nothing decided",
    )
