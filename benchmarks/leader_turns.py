"""Turns of the ledger beside many waiting executions, with and without a snapshot that is held open.

`python -m benchmarks.leader_turns --help` lists the options. Each turn admits, ends and grants the same
number of executions to four workers, as a leader under full load does; a checkpoint follows every thousand
journals, a hundredth of the requests was published before. Printed: the time of a turn at the beginning and
at the end, the longest one, the time of a load, WAL and processor time per execution.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import uvloop

from benchmarks.filled import fill
from benchmarks.processes import cpu_seconds
from turnstile.common.domain.states import Status
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.records import (
    AdmittedRow,
    Checkpoint,
    ClockChange,
    EndedRow,
    GrantRow,
    Journal,
    Turn,
    WaitingRow,
)
from turnstile.localservers.binaries import install_missing
from turnstile.localservers.postgresql import PostgresServer
from turnstile.localservers.servers import ScratchFolder
from turnstile.migrations.run import migrate

if TYPE_CHECKING:
    Session = asyncpg.Connection[asyncpg.Record]

_ACTIONS = tuple(f"reports.render_{n}" for n in range(10))
_WORKERS = tuple(f"0f8d1c52-6d0e-4d7c-9a43-00000000000{n}" for n in range(4))
_JOURNALS_MAX = 1000
_AGE_TURNS = 50
"""How many turns lie between two raises of the low id."""
_IN_PROGRESS_TURNS = 4
_PARTS = 5
"""Lines that are printed of each run."""
_EDGE = 1000
"""Turns at the beginning and at the end that are compared."""
_WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"


@dataclass(slots=True)
class Load:
    """A queue in its steady state: what is admitted at its end, and granted and ended at its head."""

    per_turn: int
    next_id: int
    head: int
    """The next id to be granted."""
    low_id: int
    counter: int = 0
    at_worker: list[list[GrantRow]] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(1))
    journals: int = 0

    def turn(self, epoch: int, number: int, at: float) -> Turn:
        first = self.next_id
        self.next_id += self.per_turn
        new = range(first, self.next_id)
        ended: list[int] = []
        over: list[tuple[int, int]] = []
        if len(self.at_worker) >= _IN_PROGRESS_TURNS:
            for row in self.at_worker.pop(0):
                ended += row.execution_ids
                over.append((row.epoch, row.counter))
        granted = self._grants(epoch, at)
        self.at_worker.append(granted)
        aged: Sequence[int] = ()
        low_id = None
        if number % _AGE_TURNS == 0:
            low_id = first
            aged = range(self.low_id, low_id)
            self.low_id = low_id
        self.journals += 1
        checkpoint = None
        if self.journals > _JOURNALS_MAX:
            self.journals = 0
            checkpoint = Checkpoint(
                totals=dict.fromkeys(_ACTIONS, (number, number)), clocks=(_clock(number),), starts={}
            )
        return Turn(
            epoch=epoch,
            number=number,
            at=at,
            admitted=[self._admitted(each, at) for each in new],
            ended=[_ended(each, at) for each in ended],
            granted=granted,
            grants_over=over,
            low_id=low_id,
            waiting=[_waiting(each, at) for each in aged],
            waiting_over=[each for each in ended if each < self.low_id],
            reserved_id=self.next_id + 10_000 if number % 100 == 1 else None,
            journal=Journal(totals=dict.fromkeys(_ACTIONS, (10, 10)), clocks=(_clock(number),)),
            checkpoint=checkpoint,
        )

    def _grants(self, epoch: int, at: float) -> list[GrantRow]:
        rows = []
        share = self.per_turn // len(_WORKERS)
        for worker_id in _WORKERS:
            ids = tuple(range(self.head, self.head + share))
            self.head += share
            counters = tuple(range(self.counter + 1, self.counter + share + 1))
            self.counter += share
            rows.append(
                GrantRow(
                    epoch=epoch,
                    counter=counters[0],
                    worker_id=worker_id,
                    granted_at=at,
                    execution_ids=ids,
                    counters=counters,
                )
            )
        return rows

    def _admitted(self, execution_id: int, at: float) -> AdmittedRow:
        number = UUID(int=self.random.getrandbits(128))
        return AdmittedRow(
            id=execution_id,
            action_ref=_ACTIONS[execution_id % 10],
            key="",
            priority=3,
            status=Status.QUEUED,
            created_at=at,
            run_at=None,
            expires_at=None,
            timeout_seconds=None,
            parameters=b'{"customer_id": %d, "name": "the parameters of an execution"}' % execution_id,
            request_hash=number,
            delivery_key=number,
        )


def _clock(number: int) -> ClockChange:
    return ClockChange(gate="pool default", priority=3, virtual=number, finish={_ACTIONS[1]: number})


def _ended(execution_id: int, at: float) -> EndedRow:
    return EndedRow(
        id=execution_id,
        status=Status.COMPLETED,
        attempt=1,
        failures=0,
        reclaims=0,
        worker_id=_WORKERS[execution_id % 4],
        queued_at=at,
        scheduled_at=at,
        started_at=at,
        completed_at=at,
        result=b'{"pages": 3}',
        error=None,
        passages=(),
    )


def _waiting(execution_id: int, at: float) -> WaitingRow:
    return WaitingRow(
        id=execution_id,
        action_ref=_ACTIONS[execution_id % 10],
        key="",
        priority=3,
        queued_at=at,
        expires_at=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of turns cost."""

    seconds: Sequence[float]
    """Of each write."""
    python_seconds: float
    server_seconds: float
    wal_bytes: int
    executions: int


async def main(options: argparse.Namespace) -> None:
    """Fill the tables, then run the turns alone and beside a snapshot."""
    install_missing()
    scratch = ScratchFolder.create()
    try:
        settings = {"max_wal_size": "4GB", "shared_buffers": "512MB"}
        server = await asyncio.to_thread(
            lambda: PostgresServer.start(scratch.path / "postgresql", durable=True, settings=settings)
        )
        try:
            await _measure(server, options)
        finally:
            await asyncio.to_thread(server.stop)
    finally:
        scratch.delete()


async def _measure(server: PostgresServer, options: argparse.Namespace) -> None:
    session: Session = await asyncpg.connect(server.url())
    await migrate(server.url())
    began = time.perf_counter()
    await fill(session, range(1, options.waiting + 1), _ACTIONS, at=1.8e9)
    print(f"{options.waiting:,} waiting: filled in {time.perf_counter() - began:.0f} s")
    ledger = Ledger(server.url())
    epoch = await ledger.take_over("benchmark")
    next_id = options.waiting + 1
    await ledger.write(Turn(epoch=epoch, number=1, at=1.9e9, low_id=next_id, reserved_id=next_id + 20_000))
    load = Load(per_turn=options.per_turn, next_id=next_id, head=1, low_id=next_id)
    number = 1
    for name, executions in (("alone", options.executions), ("beside a snapshot", options.snapshot)):
        async with AsyncExitStack() as stack:
            if name != "alone":
                holder: Session = await asyncpg.connect(server.url())
                stack.push_async_callback(holder.close)
                await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
            print(f"{name}: load before {await _load_seconds(server, epoch):.2f} s")
            measured = []
            for _ in range(_PARTS):
                numbers = range(number + 1, number + 1 + executions // options.per_turn // _PARTS)
                measured.append(await _run(server, session, ledger, load, epoch=epoch, numbers=numbers))
                number += len(numbers)
                print(f"  {_shown(measured[-1])}", flush=True)
            _print_edges(measured)
            print(f"{name}: load after {await _load_seconds(server, epoch):.2f} s")
    await ledger.close()
    await session.close()


async def _run(
    server: PostgresServer, session: "Session", ledger: Ledger, load: Load, *, epoch: int, numbers: range
) -> Measured:
    before = cpu_seconds([server.pid]), await session.fetchval(_WAL)
    seconds: list[float] = []
    python_seconds = 0.0
    known: list[UUID] = []
    for number in numbers:
        turn = load.turn(epoch, number, 1.9e9 + number / 100)
        cpu_began, began = time.process_time(), time.perf_counter()
        if known:
            # Published twice: found under its key before the turn decides.
            assert len(await ledger.look_up(known, [], [])) == len(known)
        await ledger.write(turn)
        seconds.append(time.perf_counter() - began)
        python_seconds += time.process_time() - cpu_began
        known = [row.delivery_key for row in turn.admitted[::100] if row.delivery_key is not None]
    return Measured(
        seconds=seconds,
        python_seconds=python_seconds,
        server_seconds=cpu_seconds([server.pid]) - before[0],
        wal_bytes=await session.fetchval(_WAL) - before[1],
        executions=len(numbers) * load.per_turn,
    )


async def _load_seconds(server: PostgresServer, epoch: int) -> float:
    """Return how long a ledger needs to read everything, in a new session."""
    ledger = Ledger(server.url())
    ledger.leads_as("benchmark")
    began = time.perf_counter()
    await ledger.load(epoch)
    elapsed = time.perf_counter() - began
    await ledger.close()
    return elapsed


def _shown(run: Measured) -> str:
    ordered = sorted(run.seconds)
    return (
        f"{run.executions:,} executions, {run.executions / sum(run.seconds):,.0f}/s in writes; a turn p50 "
        f"{1000 * median(ordered):.1f}, p99 {1000 * ordered[-len(ordered) // 100]:.1f}, "
        f"max {1000 * ordered[-1]:.0f} ms; "
        f"Python {1e6 * run.python_seconds / run.executions:.1f}, PostgreSQL "
        f"{1e6 * run.server_seconds / run.executions:.1f} us, WAL {run.wal_bytes / run.executions:.0f} B each"
    )


def _print_edges(runs: Sequence[Measured]) -> None:
    seconds = [each for run in runs for each in run.seconds]
    edge = min(_EDGE, len(seconds) // 2)
    first, last = median(seconds[:edge]), median(seconds[-edge:])
    stops = sum(each > 0.3 for each in seconds)
    print(
        f"  last {edge} turns / first: {1000 * last:.2f} / {1000 * first:.2f} ms = {last / first:.2f}; "
        f"longest {1000 * max(seconds):.0f} ms, {stops} above 300 ms"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leader_turns", description=__doc__)
    for option, default, meaning in (
        ("--waiting", 100_000, "executions that wait"),
        ("--executions", 50_000, "that pass without a snapshot"),
        ("--snapshot", 50_000, "that pass beside a snapshot"),
        ("--per-turn", 100, "admissions, ends and grants of a turn"),
    ):
        parser.add_argument(option, type=int, default=default, help=f"{meaning} (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    uvloop.run(main(_options()))
