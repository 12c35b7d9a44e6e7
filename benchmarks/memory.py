"""Memory: the most that executor and workers ever held while many executions waited.

The lines are filled over the broker while nothing may start; then the limit lets work through for a while.
"""

from benchmarks.actions import LIMITED
from benchmarks.client import looking, publishing, requests, settled, submit
from benchmarks.ground import Ground
from benchmarks.machine import peak_memory_mb
from benchmarks.measures import Aim, Row, Section
from benchmarks.processes import System, running_system
from benchmarks.sizes import Sizes
from benchmarks.waiting import until

_DEPTH = "SELECT sum(depth)::bigint FROM action_queue"
_PUBLISHED_AT_ONCE = 5000
_AIM_MB = 150


async def measure(ground: Ground, sizes: Sizes) -> list[Section]:
    """Fill the lines, read; let a tenth run, read again."""
    async with (
        ground.fresh("memory") as place,
        running_system(place) as system,
        publishing(place.amqp_url) as publisher,
        looking(place.database_url) as connection,
    ):
        idle = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 0)
        for start in range(0, sizes.waiting, _PUBLISHED_AT_ONCE):
            await submit(publisher, requests(LIMITED, min(_PUBLISHED_AT_ONCE, sizes.waiting - start)))

        async def all_wait() -> bool:
            return bool(await connection.fetchval(_DEPTH) == sizes.waiting)

        await until(all_wait, "all wait", deadline_seconds=sizes.deadline_seconds, pause_seconds=0.1)
        full = _peaks(system)
        for ref in LIMITED:
            await system.limit(ref, 4)
        await settled(connection, sizes.waiting // 10, deadline_seconds=sizes.deadline_seconds)
        running = _peaks(system)
    aims = (Aim(at_most=_AIM_MB),)
    return [
        Section(
            title=f"memory: most resident, {sizes.waiting:,} waiting",
            columns=tuple(idle),
            rows=(
                Row(name="started", unit="MB", cells=idle),
                Row(name="lines full", unit="MB", cells=full, aims=aims),
                Row(name="after a tenth of them ran", unit="MB", cells=running, aims=aims),
            ),
            note="a worker without child processes of its own; VmHWM",
        )
    ]


def _peaks(system: System) -> dict[str, float]:
    workers = {f"worker {n}": peak_memory_mb(pid) for n, pid in enumerate(system.worker_pids, start=1)}
    return {"executor": peak_memory_mb(system.executor_pid), **workers}
