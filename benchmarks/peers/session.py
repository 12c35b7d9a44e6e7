"""One session of a contestant: its processes on a fresh site, a warm-up, then each of its loads.

Out: a `Run` for each group, and for each load under a held snapshot. Every failure raises `DidNotHappen`
with the ends of the logs; no process is left.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.client import database_session
from benchmarks.peers.contestants import Contestant, Variant
from benchmarks.peers.history import (
    Run,
    Stops,
    hand_overs_ms,
    out_of_order_share,
    peak_concurrency_of_actions,
    trace_of,
)
from benchmarks.peers.job import GROUPS, TRACES, Group, gate_of
from benchmarks.peers.servers import Site
from benchmarks.system import cpu_seconds
from benchmarks.waiting import DidNotHappen, until
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without, serving

_ROOT: Final = Path(__file__).parents[2]
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_LOG_CHARACTERS_MAX: Final = 1500
_LINE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The amount of work, the same for every contestant."""

    jobs: int
    """Jobs of the loads over ten actions."""
    handed_over: int
    """Jobs of the load one at a time."""
    slices: int
    """Loads of `jobs` while a snapshot is held open; 0: none."""
    deadline_seconds: float

    def of(self, group: Group) -> int:
        """Return the number of jobs of a load."""
        return self.handed_over if group is Group.SINGLE else self.jobs

    def warm_up(self, group: Group) -> int:
        """Return the number of unmeasured jobs before a load."""
        return max(self.of(group) // 10, 1)


@dataclass(slots=True, kw_only=True)
class _Session:
    """The running processes of one variant."""

    submitter: asyncio.subprocess.Process
    workers: list[Service]
    folder: Path
    logs: list[Path]
    stops: Stops
    postgresql_pid: int
    loads: int = 0

    async def run(self, group: Group, count: int, deadline_seconds: float) -> Run:
        """Submit a load and wait until all its jobs have stopped."""
        self.loads += 1
        load = self.loads
        used_before = cpu_seconds([self.postgresql_pid])
        try:
            async with asyncio.timeout(deadline_seconds):
                times = await self._submit(load, group, count)
        except TimeoutError:
            raise DidNotHappen(f"{group}: {count} jobs not accepted within {deadline_seconds:g} s") from None
        gate_of(self.folder, load).touch()
        await until(
            lambda: self._all_stopped(load, count),
            f"{count} {group} jobs stopped",
            deadline_seconds=deadline_seconds,
            pause_seconds=_POLL_SECONDS,
        )
        used = cpu_seconds([self.postgresql_pid]) - used_before
        trace = trace_of(self.folder, load)
        return Run(
            jobs=count,
            seconds=(trace[-1].at - times["began_at"]) / 1e9,
            submit_seconds=(times["ended_at"] - times["began_at"]) / 1e9,
            out_of_order=out_of_order_share(trace),
            peak_concurrency=peak_concurrency_of_actions(trace),
            hand_over_ms=hand_overs_ms(trace) if group is Group.SINGLE else (),
            postgresql_us=1e6 * used / count,
        )

    async def _all_stopped(self, load: int, count: int) -> bool:
        for worker in self.workers:
            if not worker.is_running:
                raise DidNotHappen(f"{worker.name} ended by itself")
        return self.stops.count(load) >= count

    async def _submit(self, load: int, group: Group, count: int) -> dict[str, int]:
        assert self.submitter.stdin is not None
        request = {"load": load, "group": group.value, "count": count}
        self.submitter.stdin.write(json.dumps(request).encode() + b"\n")
        await self.submitter.stdin.drain()
        return await _answer(self.submitter)

    def log_ends(self) -> str:
        """Return the end of each log that is not empty."""
        texts = {log.stem: log.read_text(errors="replace").strip() for log in self.logs if log.exists()}
        return "\n".join(f"{name}: {text[-_LOG_CHARACTERS_MAX:]}" for name, text in texts.items() if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The runs of one session."""

    loads: Mapping[Group, Run]
    slices: Sequence[Run]
    """A load with limits, then the same again and again while a snapshot is held open; may be empty."""


async def run_variant(site: Site, contestant: Contestant, variant: Variant, counts: Counts) -> Results:
    """Run all loads of a variant; raises DidNotHappen where one of its processes ends or a load does not."""
    async with _running(site, contestant, variant) as session:
        try:
            for group in variant.groups:
                await session.run(group, counts.warm_up(group), counts.deadline_seconds)
            loads = {
                group: await session.run(group, counts.of(group), counts.deadline_seconds)
                for group in variant.groups
            }
            slices: list[Run] = []
            if counts.slices and contestant.on_postgresql and Group.LIMITED in variant.groups:
                slices = await _run_slices(site, session, counts)
        except DidNotHappen as failure:
            raise DidNotHappen(f"{failure}\n{session.log_ends()}".strip()) from None
    return Results(loads=loads, slices=slices)


async def _run_slices(site: Site, session: _Session, counts: Counts) -> list[Run]:
    jobs, deadline_seconds = counts.jobs, counts.deadline_seconds
    runs = [await session.run(Group.LIMITED, jobs, deadline_seconds)]
    async with (
        database_session(site.database_url) as neighbour,
        neighbour.transaction(isolation="repeatable_read"),
    ):
        await neighbour.fetchval("SELECT count(*) FROM pg_class")
        runs += [await session.run(Group.LIMITED, jobs, deadline_seconds) for _ in range(counts.slices)]
    return runs


@asynccontextmanager
async def _running(site: Site, contestant: Contestant, variant: Variant) -> AsyncIterator[_Session]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=site.scratch)))
        environment = {
            # The processes have other working folders.
            **environment_without("TURNSTILE_", importable=_ROOT),
            **site.environment,
            **variant.environment,
            GROUPS: ",".join(variant.groups),
            TRACES: str(folder),
            "TURNSTILE_HTTP_PORT": str(free_port()),
        }
        submitter = await stack.enter_async_context(_submitter(contestant.module, environment, folder))
        workers = [
            Service(
                name=f"{program.name}-{number}",
                arguments=program.arguments,
                folder=folder,
                environment=environment,
                last_signal=signal.SIGTERM,
                stop_seconds=_STOP_SECONDS,
            )
            for program in variant.programs
            for number in range(1, program.count + 1)
        ]
        await stack.enter_async_context(serving(workers, last_signal=signal.SIGTERM))
        logs = [folder / "submitter.log", *(worker.log for worker in workers)]
        yield _Session(
            submitter=submitter,
            workers=workers,
            folder=folder,
            logs=logs,
            stops=Stops(folder),
            postgresql_pid=site.postgresql_pid,
        )


@asynccontextmanager
async def _submitter(
    module: str, environment: Mapping[str, str], folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    log = folder / "submitter.log"
    with log.open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.peers.submitter",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env=dict(environment),
            limit=_LINE_BYTES_MAX,
        )
    assert started.stdin is not None
    try:
        async with asyncio.timeout(60):
            await _answer(started)
        yield started
    except (DidNotHappen, TimeoutError) as failure:
        said = log.read_text(errors="replace")[-_LOG_CHARACTERS_MAX:].strip()
        raise DidNotHappen(
            f"{str(failure) or 'the submitter did not prepare in time'}\n{said}".strip()
        ) from None
    finally:
        started.stdin.close()
        try:
            await asyncio.wait_for(started.wait(), _STOP_SECONDS)
        except TimeoutError:
            started.kill()
            await started.wait()


async def _answer(submitter: asyncio.subprocess.Process) -> dict[str, int]:
    assert submitter.stdout is not None
    while line := await submitter.stdout.readline():
        # Some systems print a banner on standard output.
        if line.startswith(b"{"):
            answer: dict[str, int] = json.loads(line)
            return answer
    raise DidNotHappen("the submitter ended by itself")
