"""Takeover: how soon another executor leads and decides beside many waiting executions, and what they need.

Rows are written while no executor runs (`filled`): a million executions in 10,000 queues. Then two executors
and two workers run. The one that leads is killed, paused (both of its processes) and stopped in turn. Out:
from the signal to the new epoch, from there to the first admission and the first grant, as another session
sees their commits; and the memory of the leader, which has loaded.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import httpx

from benchmarks.actions import AT_ONCE, HELD
from benchmarks.filled import fill
from benchmarks.processes import leader_of, memory_mb
from benchmarks.report import Aim, Row, Section
from benchmarks.system import Servers, Sizes, System, running_system
from benchmarks.waiting import until
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.records import Journal, Turn
from turnstile.localservers.services import Service

if TYPE_CHECKING:
    import asyncpg

    from benchmarks.client import Session

_KEYS_MAX: Final = 1000
_IN_A_QUEUE: Final = 100
_POLL_SECONDS: Final = 0.01
_STARTED, _KILLED, _PAUSED, _STOPPED = "started", "killed", "paused", "stopped"
_EPOCH_AIMS: Final = {_KILLED: 2, _PAUSED: 5, _STOPPED: 1}
"""Seconds."""
_DECISION_AIM_SECONDS: Final = 3
_AIM_MB: Final = 250
_NEXT_ID: Final = "SELECT reserved_id FROM ledger.turn ORDER BY epoch DESC, number DESC LIMIT 1"
_SUBMIT: Final = "SELECT turnstile.submit($1, idempotency_key => $2)"
_SEEN: Final = """
SELECT l.epoch, EXISTS (SELECT FROM ledger.execution e WHERE e.idempotency_key = $1) AS is_decided,
       EXISTS (SELECT FROM ledger.granted g WHERE g.epoch > $2) AS is_granted
FROM ledger.leadership l
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """One takeover, in seconds, and the memory of who leads then, by process."""

    epoch: float
    decision: float
    """After the epoch, as the grant."""
    grant: float
    memory: Mapping[str, float]


class _Watch:
    """Sees what the leaders commit."""

    def __init__(self, session: "Session", *, deadline_seconds: float) -> None:
        self._session = session
        self._deadline_seconds = deadline_seconds
        self.epoch = 0

    async def after(self, began: float, leader: Service) -> Takeover:
        """Return the takeover by this executor that follows an instant of the monotonic clock."""
        before, key = self.epoch, uuid4().hex
        epoch_at = await self._until("the epoch is raised", lambda seen: seen["epoch"] > before, key)
        await self._session.execute(_SUBMIT, AT_ONCE, key)
        decided_at = await self._until("a submission is admitted", lambda seen: seen["is_decided"], key)
        granted_at = await self._until("an execution is granted", lambda seen: seen["is_granted"], key)
        self.epoch = await self._session.fetchval("SELECT epoch FROM ledger.leadership")
        return Takeover(
            epoch=epoch_at - began,
            decision=decided_at - epoch_at,
            grant=granted_at - epoch_at,
            memory=_memory_of(leader),
        )

    async def _until(self, what: str, holds: "Callable[[asyncpg.Record], bool]", key: str) -> float:
        async def is_seen() -> bool:
            seen = await self._session.fetchrow(_SEEN, key, self.epoch)
            assert seen is not None
            return holds(seen)

        await until(is_seen, what, deadline_seconds=self._deadline_seconds, pause_seconds=_POLL_SECONDS)
        return time.monotonic()


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Fill the tables, then take over after each kind of end."""
    keys = max(min(sizes.loaded // (_IN_A_QUEUE * len(HELD)), _KEYS_MAX), 1)
    async with running_system(servers, "takeover", sizes, executors=2) as system:
        for executor in system.executors:
            await executor.end(signal.SIGTERM)
        watch = _Watch(system.session, deadline_seconds=sizes.deadline_seconds)
        watch.epoch = await _filled(system.deployment.database_url, system.session, sizes.loaded, keys)
        takeovers = await _takeovers(system, watch)
    return _sections(takeovers, f"{sizes.loaded:,} waiting in {keys * len(HELD):,} queues")


async def _filled(database_url: str, session: "Session", count: int, keys: int) -> int:
    """Let so many executions wait; return the epoch under which that was written."""
    first = await session.fetchval(_NEXT_ID)
    await fill(session, range(first, first + count), HELD, keys=keys, at=time.time() - 60)
    ledger = Ledger(database_url)
    try:
        epoch = await ledger.take_over("benchmark")
        totals = {ref: (len(range(number, count, len(HELD))), 0) for number, ref in enumerate(HELD)}
        next_id = first + count
        await ledger.write(
            Turn(
                epoch=epoch, number=1, at=time.time(), low_id=next_id, reserved_id=next_id,
                journal=Journal(totals=totals),
            )
        )  # fmt: skip
    finally:
        await ledger.close()
    return epoch


async def _takeovers(system: System, watch: _Watch) -> dict[str, Takeover]:
    """Let the two executors take over from each other."""
    first, second = system.executors
    began = time.monotonic()
    await first.start()
    found = {_STARTED: await watch.after(began, first)}
    await _ready(first, second)

    began = time.monotonic()
    found[_KILLED] = await _while(first.end(signal.SIGKILL), watch.after(began, second))
    await _ready(first)

    paused = [leader_of(second.pid), second.pid]
    began = time.monotonic()
    _send(paused, signal.SIGSTOP)
    try:
        found[_PAUSED] = await watch.after(began, first)
    finally:
        _send(paused, signal.SIGCONT)
    await _ready(second)

    began = time.monotonic()
    found[_STOPPED] = await _while(first.end(signal.SIGTERM), watch.after(began, second))
    return found


async def _while(ending: Coroutine[None, None, None], takeover: Coroutine[None, None, Takeover]) -> Takeover:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ending, name="end of the leader")
        found = tasks.create_task(takeover, name="takeover")
    return found.result()


def _send(pids: list[int], which: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, which)


async def _ready(*executors: Service) -> None:
    """Start these executors unless they run, and wait until they could lead."""
    async with httpx.AsyncClient(trust_env=False) as http:
        for executor in executors:
            await executor.start()
            await executor.ready(http)


def _memory_of(executor: Service) -> dict[str, float]:
    leader = leader_of(executor.pid)
    return {
        "leader, peak": memory_mb(leader, "VmHWM"),
        "leader, now": memory_mb(leader),
        "its executor's other process, now": memory_mb(executor.pid),
    }


def _sections(takeovers: Mapping[str, Takeover], load: str) -> list[Section]:
    """Show how soon another executor led and decided, and the memory after each takeover."""

    def row(name: str, unit: str, value: Callable[[Takeover], float], *aims: Aim) -> Row:
        cells = {column: value(each) for column, each in takeovers.items()}
        return Row(name=name, unit=unit, cells=cells, aims=aims)

    epoch_aims = [Aim(at_most=most, columns=(name,)) for name, most in _EPOCH_AIMS.items()]
    decision_aim = Aim(at_most=_DECISION_AIM_SECONDS)
    memory_aims = {"leader, peak": (Aim(at_most=_AIM_MB),)}
    return [
        Section(
            title=f"takeover: seconds, {load}",
            columns=tuple(takeovers),
            rows=(
                row("signal → epoch", "s", lambda each: each.epoch, *epoch_aims),
                row("epoch → first decision", "s", lambda each: each.decision, decision_aim),
                row("epoch → first grant", "s", lambda each: each.grant),
            ),
            note=f"{_STARTED}: with the start of the process; decision: a submission is admitted",
        ),
        Section(
            title=f"takeover: resident memory, {load}",
            columns=tuple(takeovers),
            rows=tuple(
                Row(
                    name=name,
                    unit="MB",
                    cells={column: each.memory[name] for column, each in takeovers.items()},
                    aims=memory_aims.get(name, ()),
                )
                for name in takeovers[_STARTED].memory
            ),
            note="VmHWM and VmRSS, after the first grant",
        ),
    ]
