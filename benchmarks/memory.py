"""Memory: the peak of executor, leader and workers while many executions wait.

The queues are filled over the broker while no execution may start; then the limit lets a tenth run.
"""

from benchmarks.actions import LIMITED
from benchmarks.client import load, publishing, submit, total, wait_until_queued
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes, System, leader_of, peak_memory_mb, running_system
from benchmarks.waiting import until

_PUBLISHED_AT_ONCE = 5000
_AIM_MB = 150


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Read the memory with full queues, and after a tenth of the executions ran."""
    async with (
        servers.deployment("memory") as deployment,
        running_system(deployment) as system,
        publishing(deployment.amqp_url) as publisher,
    ):
        idle = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 0)
        for start in range(0, sizes.waiting, _PUBLISHED_AT_ONCE):
            count = min(_PUBLISHED_AT_ONCE, sizes.waiting - start)
            await submit(publisher, load(LIMITED, count).messages)
        await wait_until_queued(system.api, LIMITED, sizes.waiting, deadline_seconds=sizes.deadline_seconds)
        full = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 4)

        async def a_tenth_ran() -> bool:
            return await total(system.api, LIMITED, "total_completed") >= sizes.waiting // 10

        await until(a_tenth_ran, "a tenth ended", deadline_seconds=sizes.deadline_seconds, pause_seconds=0.1)
        running = _peaks(system)
    aims = (Aim(at_most=_AIM_MB),)
    return [
        Section(
            title=f"memory: peak resident memory, {sizes.waiting:,} waiting",
            columns=tuple(idle),
            rows=(
                Row(name="started", unit="MB", cells=idle),
                Row(name="queues full", unit="MB", cells=full, aims=aims),
                Row(name="after a tenth of them ran", unit="MB", cells=running, aims=aims),
            ),
            note="a worker without child processes of its own; VmHWM",
        )
    ]


def _peaks(system: System) -> dict[str, float]:
    workers = {f"worker {n}": peak_memory_mb(pid) for n, pid in enumerate(system.pids()["workers"], start=1)}
    executor = system.executors[0].pid
    return {
        "executor": peak_memory_mb(executor), "leader": peak_memory_mb(leader_of(executor)), **workers,
    }  # fmt: skip
