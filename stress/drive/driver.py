"""Carries out one scenario: prepares actions, sends requests, injects faults, watches, reads the history.

Submitters, replies and faults run in one group of tasks; the watcher decides when the scenario is over.
"""

import asyncio
import hashlib
import secrets
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.drive.faults import Faults
from turnstile.stress.drive.gates import GateChanges
from turnstile.stress.drive.history import ScenarioHistory, read_scenario_history
from turnstile.stress.drive.pacing import Pacing, ScenarioRun
from turnstile.stress.drive.setup import plain_fields, store_actions
from turnstile.stress.drive.submission import Answers, Requests, Submitter
from turnstile.stress.drive.traces import TraceFolder, all_on_this_host, remote_runs, traced_runs
from turnstile.stress.drive.watcher import Watcher
from turnstile.stress.installation import Api, Installation, Unreachable
from turnstile.stress.local.faults import LocalSystem
from turnstile.stress.recording import ORDER, Audit, Recording, RunEnd, Table, empty
from turnstile.stress.scenario import DurationMix, Load, Scenario, Show
from turnstile.stress.trace import POOL

_ANSWERS_SECONDS: Final = 10.0
_LAST_TRACES_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_TICK_MARGIN_SECONDS: Final = 4.0
"""A busy machine commits late: many queues are locked while many requests are admitted."""
_CLOCK_ERROR_NS: Final = 50_000_000
"""The possible difference between clocks of several hosts with NTP."""
_DURATION_US_MAX: Final = np.iinfo(np.int32).max


async def drive_scenario(
    scenario: Scenario,
    installation: Installation,
    *,
    seed: int,
    show: Show,
    injector: LocalSystem | None,
) -> Recording:
    """Carry out a scenario and return its recording; raises Unreachable where the installation stays away.

    At the end, everything has ended, or nothing changes any more.
    """
    try:
        async with Api(installation) as api:
            return await _Drive(scenario, installation, api, injector, seed=seed, show=show).run()
    except ExceptionGroup as group:
        # The first error is the reason; the other tasks were cancelled for it.
        raise _first(group) from group


class _Drive:
    """One scenario in progress."""

    def __init__(
        self,
        scenario: Scenario,
        installation: Installation,
        api: Api,
        injector: LocalSystem | None,
        *,
        seed: int,
        show: Show,
    ) -> None:
        load = scenario.load
        self._scenario, self._installation, self._api, self._injector = scenario, installation, api, injector
        self._run = ScenarioRun(
            scenario=scenario,
            token=f"{scenario.name}-{secrets.token_hex(6)}",
            amqp_url=installation.amqp_url.get_secret_value(),
            orders=plan_orders(load, seed, scenario.name),
            pacing=Pacing(load.executions, load.rate),
        )
        self._gates = GateChanges(self._run, api)
        self._faults = Faults(self._run, api, injector)
        self._watcher = Watcher(
            self._run, api, self._faults, lease_seconds=installation.lease_seconds, show=show
        )

    async def run(self) -> Recording:
        """Carry out the scenario."""
        watcher, watchdog_seconds = self._watcher, self._installation.watchdog_seconds
        await store_actions(self._api, self._scenario)
        await watcher.begin()
        after_id = await self._api.newest_id()
        folder = self._installation.trace_folder
        traces = None if folder is None else TraceFolder.now(folder)
        await self._run_load()
        ended_at = self._run.clock.now()
        watcher.show("reading the history")
        history = await read_scenario_history(
            self._api, self._scenario.load, token=self._run.token, after_id=after_id
        )
        runs = await self._runs(traces, history)
        await watcher.read_counters()
        since = watcher.began_at - _CLOCK_ERROR_NS
        recording = Recording(
            scenario=self._scenario,
            began_at=watcher.began_at,
            ended_at=ended_at,
            opened_at=watcher.opened_at,
            orders=self._run.orders,
            executions=history.executions,
            attempts=history.attempts,
            runs=runs,
            stays=history.stays,
            gates=await self._gates.records(history.gate_names, since),
            pool=await self._gates.pool_record(since),
            workers=history.workers,
            faults=tuple(self._faults.injected),
            limit_changes=tuple(self._faults.limit_changes),
            counters=tuple(watcher.counters),
            audit=await self._audit(),
            clock_error_ns=0 if all_on_this_host(history.remote_runs) else _CLOCK_ERROR_NS,
            worker_capacity=await self._worker_capacity(),
            idle_allowed_seconds=watchdog_seconds + _TICK_MARGIN_SECONDS,
        )
        await self._gates.remove(plain_fields(self._scenario))
        return recording

    async def _worker_capacity(self) -> int:
        workers = await self._api.live_workers()
        return sum(worker["concurrency"] for worker in workers if POOL in worker["pools"])

    async def _run_load(self) -> None:
        """Send requests, inject faults and watch until the scenario is over."""
        requests = Requests(self._run)
        answers = None if requests.reply_to is None else Answers(self._run, requests, requests.reply_to)
        async with asyncio.TaskGroup() as tasks:
            background: list[asyncio.Task[None]] = []
            if answers is not None:
                background.append(tasks.create_task(answers.run(), name="answers"))
            for number in range(self._scenario.load.submitters):
                submitter = Submitter(number, self._run, requests, answers)
                background.append(tasks.create_task(submitter.run(), name=f"submitter-{number}"))
            for fault in self._scenario.faults:
                tasks.create_task(self._faults.inject(fault), name=f"fault-{fault.kind}")
            tasks.create_task(self._gates.make(), name="gates")
            await self._watcher.until_over()
            if answers is not None:
                # The check reports replies that never arrive.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ANSWERS_SECONDS):
                        await self._run.pacing.all_answered.wait()
            for task in background:
                task.cancel()

    async def _runs(self, traces: TraceFolder | None, history: ScenarioHistory) -> Table:
        """Return the runs; wait a moment for runs that may still write their stop."""
        longest_seconds = self._scenario.load.mix.max_seconds
        give_up_at = asyncio.get_running_loop().time() + _LAST_TRACES_SECONDS + longest_seconds
        while True:
            processes = [] if traces is None else traces.read()
            exits = {} if self._injector is None else self._injector.exits()
            runs = traced_runs(processes, self._run.clock, exits, history.executions)
            unknown = np.count_nonzero(runs["end"] == RunEnd.UNKNOWN)
            if not unknown or asyncio.get_running_loop().time() > give_up_at:
                break
            await asyncio.sleep(_POLL_SECONDS)
        remote = remote_runs(history.remote_runs, self._run.clock, processes_before=len(processes))
        runs = np.concatenate([runs, remote])
        return runs[np.argsort(runs["started_at"], kind="stable")]

    async def _audit(self) -> Audit | None:
        """Return the installation's audit; without the history where that takes too long."""
        for record in (True, False):
            with suppress(Unreachable):
                found = await self._api.audit(record=record)
                faults = {check["name"]: check["faults"] for check in found["checks"] if check["faults"]}
                return Audit(clean=found["clean"], faults=faults)
        return None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def plan_orders(load: Load, seed: int, name: str) -> Table:
    """Return `load.executions` requests; each submitter sends its own in this order.

    Raises ValueError for a duration above the maximum.
    """
    rng = np.random.default_rng(_entropy(seed, name))
    count = load.executions
    orders = empty(ORDER, count)
    # In turn, so that paced requests are spread evenly over the submitters.
    orders["submitter"] = np.arange(count) % load.submitters
    orders["queue"] = rng.permutation(np.arange(count, dtype=np.int32) % load.queues)
    orders["duration_us"] = rng.permutation(_durations_us(load.mix, count))
    return orders


def _durations_us(mix: DurationMix, count: int) -> NDArray[np.int32]:
    durations = [round(part.seconds * 1_000_000) for part in mix.parts]
    if max(durations) > _DURATION_US_MAX:
        raise ValueError(
            f"the mix {mix}: an execution may take {_DURATION_US_MAX / 60e6:.0f} minutes at most"
        )
    return np.repeat(np.array(durations, np.int32), _counts([part.share for part in mix.parts], count))


def _counts(shares: list[float], count: int) -> NDArray[np.int64]:
    """Divide by the largest remainder method: the counts add up, and each is off by less than one."""
    exact = np.array(shares) * count / sum(shares)
    counts = np.floor(exact + 1e-9).astype(np.int64)
    left = count - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def _entropy(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest())
