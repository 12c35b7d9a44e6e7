"""The variants: processes and settings of each system, and one session of a variant on a fresh database.

A session starts the processes, submits a warm-up and then each load, and returns a `Run` for each. A failure
raises `DidNotHappen` with the ends of the logs; no process is left.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from benchmarks.peers.history import (
    Run,
    Stops,
    hand_overs_ms,
    out_of_order_share,
    peak_concurrency_of_actions,
    trace_of,
)
from benchmarks.peers.job import DATABASE_URL, TRACES, Group, Submit, gate_of, jobs_of
from benchmarks.system import Servers, with_logs
from benchmarks.waiting import DidNotHappen, until
from turnstile.localservers.services import Service, serving
from turnstile.stress.local.launcher import Deployment

_POLL_SECONDS: Final = 0.05
_WARM_UP_SHARE: Final = 10


class System(Protocol):
    """The interface of `on_turnstile` and `on_pgqueuer`."""

    async def prepare(self, deployment: Deployment) -> None:
        """Create what the workers need before they start."""
        ...

    def submitting(self, deployment: Deployment) -> AbstractAsyncContextManager[Submit]:
        """Connect while workers run, and wait until jobs are accepted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration of a system; a row in the table of each of its groups."""

    name: str
    module: str
    services: Callable[[Deployment], list[Service]]
    groups: tuple[Group, ...] = tuple(Group)

    @property
    def is_own(self) -> bool:
        """Whether it is this project."""
        return self.module == _TURNSTILE


_TURNSTILE: Final = "benchmarks.peers.on_turnstile"
_PGQUEUER: Final = "benchmarks.peers.on_pgqueuer"


def _turnstile(deployment: Deployment) -> list[Service]:
    settings = {"TURNSTILE_WORKER_CONCURRENCY": "50"}
    workers = [
        deployment.worker(f"worker-{number}", actions=_TURNSTILE, settings=settings) for number in (1, 2)
    ]
    return [deployment.executor(), *workers]


def _pgqueuer(batch: int, processes: int, *groups: Group) -> Variant:
    def services(deployment: Deployment) -> list[Service]:
        return [
            Service(
                name=f"worker-{number}",
                arguments=(_PGQUEUER, str(batch)),
                folder=deployment.folder,
                environment=deployment.environment({DATABASE_URL: deployment.database_url}),
                last_signal=deployment.last_signal,
                stop_seconds=deployment.stop_seconds,
            )
            for number in range(1, processes + 1)
        ]

    name = f"PgQueuer, {processes} process{'es' if processes > 1 else ''}, batches of {batch}"
    return Variant(name=name, module=_PGQUEUER, services=services, groups=groups)


VARIANTS: Final = (
    Variant(name="Turnstile, 2 workers", module=_TURNSTILE, services=_turnstile),
    # The largest batch that gains; the default, since a batch that the limits do not fill waits 100 ms to be
    # logged; and the batch that logs, and so frees, each job at once.
    *(_pgqueuer(100, processes, Group.FREE) for processes in (1, 2)),
    *(_pgqueuer(10, processes, Group.LIMITED, Group.TIMED) for processes in (1, 2)),
    *(_pgqueuer(1, processes, Group.SINGLE) for processes in (1, 2)),
)


async def run_variant(
    servers: Servers, variant: Variant, counts: Mapping[Group, int], deadline_seconds: float
) -> dict[Group, Run]:
    """Run all loads of a variant; raises DidNotHappen where one does not end."""
    system = cast(System, import_module(variant.module))
    async with servers.deployment("peers") as fresh:
        deployment = replace(fresh, settings={**fresh.settings, TRACES: str(fresh.folder)})
        await system.prepare(deployment)
        services = variant.services(deployment)
        async with (
            with_logs(services),
            serving(services, last_signal=deployment.last_signal),
            system.submitting(deployment) as submit,
        ):
            session = _Session(submit, services, deployment.folder, deadline_seconds)
            for group in variant.groups:
                await session.run(group, max(counts[group] // _WARM_UP_SHARE, 1))
            return {group: await session.run(group, counts[group]) for group in variant.groups}


class _Session:
    """The running processes of one variant."""

    def __init__(
        self, submit: Submit, services: list[Service], folder: Path, deadline_seconds: float
    ) -> None:
        self._submit, self._services, self._folder = submit, services, folder
        self._deadline_seconds = deadline_seconds
        self._stops = Stops(folder)
        self._loads = 0

    async def run(self, group: Group, count: int) -> Run:
        """Submit a load and wait until all its jobs have stopped."""
        self._loads += 1
        load = self._loads
        jobs = jobs_of(load, group, count)

        async def all_stopped() -> bool:
            for service in self._services:
                if not service.is_running:
                    raise DidNotHappen(f"{service.name} ended by itself")
            return self._stops.count(load) >= count

        began_at = time.monotonic_ns()
        async with asyncio.timeout(self._deadline_seconds):
            await self._submit(group, jobs)
        accepted_at = time.monotonic_ns()
        gate_of(self._folder, load).touch()
        await until(
            all_stopped,
            f"{count} {group} jobs stopped",
            deadline_seconds=self._deadline_seconds,
            pause_seconds=_POLL_SECONDS,
        )
        trace = trace_of(self._folder, load)
        return Run(
            jobs=count,
            seconds=(trace[-1].at - began_at) / 1e9,
            submit_seconds=(accepted_at - began_at) / 1e9,
            out_of_order=out_of_order_share(trace),
            peak_concurrency=peak_concurrency_of_actions(trace),
            hand_over_ms=hand_overs_ms(trace) if group is Group.SINGLE else (),
        )
