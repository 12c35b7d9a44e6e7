"""Carries out one stage: opens the actions, sends, breaks, watches, reads back.

In: a stage and an installation. Out: its `Recording`. Submitters, answers and faults stand side by side in
one group of tasks; the watcher says when it is over. Next: `submitter`, `watcher`, `record`.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Final

import numpy as np

from turnstile.stress.api import Api, Unreachable
from turnstile.stress.drive.answers import Answers
from turnstile.stress.drive.broker import address
from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.faults import Faults
from turnstile.stress.drive.mark_files import MarkFolder
from turnstile.stress.drive.opening import Limits, store_actions
from turnstile.stress.drive.progression import Progression
from turnstile.stress.drive.ready import check_ready
from turnstile.stress.drive.record import Record, read_record
from turnstile.stress.drive.requests import Requests
from turnstile.stress.drive.runs import runs_marked
from turnstile.stress.drive.submitter import Post, Submitter
from turnstile.stress.drive.told import all_here, runs_told
from turnstile.stress.drive.watcher import Watched, Watcher
from turnstile.stress.installation import Breaker, Installation
from turnstile.stress.load import plan_orders
from turnstile.stress.progress import Show
from turnstile.stress.recording import Audit, Recording
from turnstile.stress.stage import Stage
from turnstile.stress.tables import RunEnd, Table

__all__ = ["check_ready", "drive_stage"]

_ANSWERS_SECONDS: Final = 10.0
_LAST_MARKS_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1
_TICK_MARGIN_SECONDS: Final = 4.0
"""A busy machine commits late: the lines of many queues are locked while many requests are admitted."""
_CLOCK_ERROR_NS: Final = 50_000_000
"""What clocks of several hosts, kept by NTP, may differ by."""


async def drive_stage(
    stage: Stage,
    installation: Installation,
    *,
    seed: int,
    show: Show,
    number: int,
    stages: int,
    breaker: Breaker | None,
) -> Recording:
    """Return what everybody saw of it; raises Unreachable where the installation stays away.

    The system is left as it is at the end: everything has ended, or nothing moved any more.
    """
    try:
        async with Api(installation) as api:
            drive = _Drive(stage, installation, api, breaker, seed=seed)
            return await drive.carry_out(show, number=number, stages=stages)
    except ExceptionGroup as group:
        # The first is the reason; the rest were cancelled for it.
        raise _first(group) from group


class _Drive:
    """One stage on its way."""

    def __init__(
        self, stage: Stage, installation: Installation, api: Api, breaker: Breaker | None, *, seed: int
    ) -> None:
        self._stage = stage
        self._installation = installation
        self._api = api
        self._breaker = breaker
        self._amqp_url = installation.amqp_url.get_secret_value()
        self._clock = Clock.start()
        self._orders = plan_orders(stage.load, seed, stage.name)
        self._progression = Progression(stage.load.executions, stage.load.rate)
        token = f"{stage.name}-{secrets.token_hex(6)}"
        queue = f"stress.{token}.answers" if stage.load.answered else None
        self._requests = Requests(self._orders, stage.load, token=token, reply_to=queue)
        self._answers = None if queue is None else self._answers_at(queue)
        self._limits = Limits(api, stage, self._clock)
        self._faults = Faults(stage.faults, breaker, self._limits, self._progression, self._clock)

    async def carry_out(self, show: Show, *, number: int, stages: int) -> Recording:
        """Do it."""
        await store_actions(self._api, self._stage)
        watcher = self._watcher(show, number=number, stages=stages)
        await watcher.begin()
        after_id = await self._api.newest_id()
        folder = self._installation.marks_folder
        marks = None if folder is None else MarkFolder.now(folder)
        await self._run(watcher)
        ended_at = self._clock.now()
        watcher.show("reading the record back", at_once=True)
        token = self._requests.token
        record = await read_record(self._api, self._stage.load, token=token, after_id=after_id)
        runs = await self._runs(marks, record)
        await watcher.read_counters()
        return Recording(
            stage=self._stage,
            began_at=watcher.began_at,
            ended_at=ended_at,
            opened_at=watcher.opened_at,
            orders=self._orders,
            executions=record.executions,
            attempts=record.attempts,
            runs=runs,
            samples=watcher.samples,
            workers=record.workers,
            faults=tuple(self._faults.injected),
            limit_changes=tuple(self._limits.changes),
            counters=tuple(watcher.counters),
            audit=await self._audit(),
            clock_error_ns=0 if all_here(record.told) else _CLOCK_ERROR_NS,
            idle_allowed_seconds=self._installation.watchdog_seconds + _TICK_MARGIN_SECONDS,
        )

    async def _run(self, watcher: Watcher) -> None:
        """Send, break and watch until it is over."""
        post = Post(
            orders=self._orders,
            requests=self._requests,
            progression=self._progression,
            clock=self._clock,
            answers=self._answers,
            broker=address(self._amqp_url),
        )
        async with asyncio.TaskGroup() as tasks:
            standing: list[asyncio.Task[None]] = []
            if self._answers is not None:
                standing.append(tasks.create_task(self._answers.run(), name="answers"))
            for number in range(self._stage.load.submitters):
                submitter = Submitter(number, self._amqp_url, post)
                standing.append(tasks.create_task(submitter.run(), name=f"submitter-{number}"))
            for fault in self._stage.faults:
                tasks.create_task(self._faults.carry_out(fault), name=f"fault-{fault.kind}")
            await watcher.until_over()
            await self._last_answers()
            for task in standing:
                task.cancel()

    async def _last_answers(self) -> None:
        """Wait for what is still to be answered; what never is, the check will find."""
        if self._answers is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ANSWERS_SECONDS):
                    await self._progression.all_answered.wait()

    async def _runs(self, marks: MarkFolder | None, record: Record) -> Table:
        """Return what the actions told; one that was cut off from its end may still write its last mark."""
        give_up_at = asyncio.get_running_loop().time() + _LAST_MARKS_SECONDS + self._longest_seconds
        while True:
            processes = [] if marks is None else marks.read()
            deaths = {} if self._breaker is None else self._breaker.deaths()
            runs = runs_marked(processes, self._clock, deaths, record.executions)
            unknown = np.count_nonzero(runs["end"] == RunEnd.UNKNOWN)
            if not unknown or asyncio.get_running_loop().time() > give_up_at:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        told = runs_told(record.told, self._clock, processes_before=len(processes))
        runs = np.concatenate([runs, told])
        return runs[np.argsort(runs["started_at"], kind="stable")]

    async def _audit(self) -> Audit | None:
        """Return what the installation finds itself; without the history where that takes it too long."""
        for record in (True, False):
            with suppress(Unreachable):
                found = await self._api.audit(record=record)
                faults = {check["name"]: check["faults"] for check in found["checks"] if check["faults"]}
                return Audit(clean=found["clean"], faults=faults)
        return None

    def _answers_at(self, queue: str) -> Answers:
        return Answers(
            self._amqp_url,
            queue,
            orders=self._orders,
            requests=self._requests,
            progression=self._progression,
            clock=self._clock,
        )

    def _watcher(self, show: Show, *, number: int, stages: int) -> Watcher:
        watched = Watched(
            stage=self._stage,
            number=number,
            stages=stages,
            orders=self._orders,
            progression=self._progression,
            faults=self._faults,
            limits=self._limits,
            clock=self._clock,
            lease_seconds=self._installation.lease_seconds,
            show=show,
        )
        return Watcher(self._api, watched)

    @property
    def _longest_seconds(self) -> float:
        return max(part.seconds for part in self._stage.load.mix.parts)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
