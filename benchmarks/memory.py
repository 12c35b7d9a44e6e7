"""Memory: the peak of executor and workers while many executions wait.

The queues are filled over the broker while no execution may start; then the limit lets a tenth run.
"""

from benchmarks.actions import LIMITED
from benchmarks.client import database_session, publishing, requests, settled, submit
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes, System, peak_memory_mb, running_system
from benchmarks.waiting import until

_DEPTH = "SELECT sum(depth)::bigint FROM turnstile.current_queue"
_PUBLISHED_AT_ONCE = 5000
_AIM_MB = 150


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Read the memory with full queues, and after a tenth of the executions ran."""
    async with (
        servers.deployment("memory") as deployment,
        running_system(deployment) as system,
        publishing(deployment.amqp_url) as publisher,
        database_session(deployment.database_url) as connection,
    ):
        idle = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 0)
        for start in range(0, sizes.waiting, _PUBLISHED_AT_ONCE):
            await submit(publisher, requests(LIMITED, min(_PUBLISHED_AT_ONCE, sizes.waiting - start)))

        async def all_wait() -> bool:
            return bool(await connection.fetchval(_DEPTH) == sizes.waiting)

        await until(
            all_wait, "all executions wait", deadline_seconds=sizes.deadline_seconds, pause_seconds=0.1
        )
        full = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 4)
        await settled(connection, sizes.waiting // 10, deadline_seconds=sizes.deadline_seconds)
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
    workers = {f"worker {n}": peak_memory_mb(pid) for n, pid in enumerate(system.worker_pids, start=1)}
    return {"executor": peak_memory_mb(system.executor_pid), **workers}
