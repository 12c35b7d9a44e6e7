"""Clients: the hand-over at limit 1 without and with HTTP clients that list and submit beside it.

The clients are a process of their own (`http_clients`), at one request per second each, and without a pause.
They ask the executor that leads; the measurement asks another one, since the first may not answer in time.
Out: the hand-over beside them as a ratio to that without them, and how soon they are answered.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

from benchmarks.client import database_session, publishing
from benchmarks.hand_over import HandOver
from benchmarks.report import DELAY_COLUMNS, Aim, Row, Section, delay_row
from benchmarks.system import Servers, Sizes, System, running_system
from benchmarks.waiting import DidNotHappen
from turnstile.stress.check.counts import percentile

_ALONE: Final = "without them"
_PAUSES: Final = {"a request a second each": 1.0, "without a pause": 0.0}
_QUEUED: Final = 2
"""Times the executions of the hand-over part: so that the clients send for seconds."""
_AIM: Final = 2
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the clients saw, in seconds."""

    seconds: float
    answers: Sequence[float]
    refusals: int


async def measure(servers: Servers, sizes: Sizes) -> list[Section]:
    """Hand over without clients, beside slow ones and beside fast ones, for a number of rounds."""
    gaps: dict[str, list[float]] = {name: [] for name in (_ALONE, *_PAUSES)}
    answers: dict[str, list[Answers]] = {name: [] for name in _PAUSES}
    async with (
        servers.deployment("clients") as deployment,
        running_system(deployment, executors=2) as system,
        publishing(deployment.amqp_url) as publisher,
        database_session(deployment.database_url) as session,
    ):
        hand_over = HandOver(system, publisher, session, deadline_seconds=sizes.deadline_seconds)
        port = await _port_of_leader(system)
        await hand_over.prepare(sizes.queued)
        await hand_over.run()
        for _ in range(sizes.rounds):
            await hand_over.prepare(sizes.queued * _QUEUED)
            gaps[_ALONE] += await hand_over.run()
            for name, pause in _PAUSES.items():
                await hand_over.prepare(sizes.queued * _QUEUED)
                async with _clients(port, sizes.clients, pause, answers[name], sizes.deadline_seconds):
                    gaps[name] += await hand_over.run()
    return [_gap_section(gaps, sizes), _client_section(gaps, answers, sizes)]


async def _port_of_leader(system: System) -> int:
    """Let the second executor lead; return its port."""
    first, second = system.executors
    await first.end(signal.SIGTERM)
    await first.start()
    async with httpx.AsyncClient(trust_env=False) as http:
        await first.ready(http)
    assert second.port is not None
    return second.port


@asynccontextmanager
async def _clients(
    port: int, count: int, pause_seconds: float, answers: list[Answers], deadline_seconds: float
) -> AsyncIterator[None]:
    """Run clients beside the block; adds what they saw."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.http_clients", str(port), str(count), str(pause_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(deadline_seconds):
            if not await process.stdout.readline():
                raise DidNotHappen("the clients are answered")
        yield
        async with asyncio.timeout(deadline_seconds):
            process.stdin.close()
            line = await process.stdout.readline()
        if not line:
            raise DidNotHappen("every client is answered to the end")
        answers.append(Answers(**json.loads(line)))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _gap_section(gaps: Mapping[str, Sequence[float]], sizes: Sizes) -> Section:
    return Section(
        title=f"clients: milliseconds from a finish to the next start, limit 1, {sizes.clients} HTTP clients",
        columns=DELAY_COLUMNS,
        rows=tuple(delay_row(name, of, ()) for name, of in gaps.items()),
    )


def _client_section(
    gaps: Mapping[str, Sequence[float]], answers: Mapping[str, Sequence[Answers]], sizes: Sizes
) -> Section:
    """Compare the hand-over beside the clients with that without them."""

    def ratios(share: float) -> dict[str, float]:
        alone = percentile(gaps[_ALONE], share) or 0.0
        return {name: (percentile(gaps[name], share) or 0.0) / alone for name in answers}

    def delays(share: float) -> dict[str, float]:
        return {
            name: 1000 * (percentile([each for run in runs for each in run.answers], share) or 0.0)
            for name, runs in answers.items()
        }

    return Section(
        title=f"clients: {sizes.clients} of them list and submit beside the hand-over",
        columns=tuple(answers),
        rows=(
            Row(name="hand-over, p50, ratio to without them", cells=ratios(0.5)),
            Row(name="hand-over, p99, ratio to without them", cells=ratios(0.99), aims=(Aim(at_most=_AIM),)),
            Row(
                name="answers",
                unit="1/s",
                cells={
                    name: sum(len(run.answers) for run in runs) / sum(run.seconds for run in runs)
                    for name, runs in answers.items()
                },
            ),
            Row(name="answers, p50", unit="ms", cells=delays(0.5)),
            Row(name="answers, p99", unit="ms", cells=delays(0.99)),
            Row(
                name="refusals",
                cells={name: sum(run.refusals for run in runs) for name, runs in answers.items()},
            ),
        ),
        note="2 of 3 requests list, 1 submits; clients, servers and services share the processors",
    )
