"""The leader's process and its parent: neither outlives the other for long, and each ends in order."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.leader_process.support import Executor, Store, executor, is_alive
from tests.support.proxy import proxy_to
from tests.support.service_template import DIES_WITH_US
from tests.support.traffic import until
from turnstile.executor.serving import ProcessTimes

ROOT = Path(__file__).parents[3]


class Parent:
    """`executor serve` in small, in a process of its own; see `parent.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode().strip())

    @property
    def leader_pid(self) -> int:
        """The id of its leader process."""
        return int(self.lines[-1].split()[0])

    async def until_leading(self) -> int:
        """Return the id of its leader process."""
        await until(lambda: self.lines and self.lines[-1].endswith("leads"), deadline_seconds=20)
        return self.leader_pid

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), 20)
        await self._reading
        return code


@asynccontextmanager
async def parent(database_url: str, amqp_url: str, *, http: str = "idle") -> AsyncIterator[Parent]:
    process = await asyncio.create_subprocess_exec(
        *DIES_WITH_US,
        *(sys.executable, "-m", "tests.integration.leader_process.parent"),
        *("parent", database_url, amqp_url, http),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    one = Parent(process)
    try:
        yield one
    finally:
        if process.returncode is None:
            process.kill()
        await one.ended()


async def until_gone(pid: int, *, seconds: float) -> None:
    await until(lambda: not is_alive(pid), f"{pid} is gone", deadline_seconds=seconds)


async def test_a_stop_ends_http_and_the_leader_in_order(database_url: str, amqp_url: str) -> None:
    async with parent(database_url, amqp_url) as one:
        pid = await one.until_leading()
        began_at = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        assert await one.ended() == 0
        assert time.monotonic() - began_at < 3.0
        assert not is_alive(pid)
        assert one.lines[-1] == "served"
        assert "http ended" in one.lines


async def test_a_slow_request_does_not_keep_the_leader_from_handing_over(
    database_url: str, amqp_url: str
) -> None:
    async with parent(database_url, amqp_url, http="slow") as one:
        await one.until_leading()
        async with executor("next", database_url, amqp_url) as other:
            await other.until_waiting()
            began_at = time.monotonic()
            one.process.send_signal(signal.SIGTERM)
            await other.until_leading()
            seconds = other.led_at[-1] - began_at
            print(f"{seconds:.2f} s until another leads")
            assert seconds < 2.0
            assert await one.ended() == 0


async def test_the_leader_ends_at_once_with_its_parent(database_url: str, amqp_url: str) -> None:
    async with parent(database_url, amqp_url) as one:
        pid = await one.until_leading()
        # Not even one that is stopped outlives it.
        os.kill(pid, signal.SIGSTOP)
        one.process.kill()
        await until_gone(pid, seconds=2)


async def test_a_second_signal_ends_both_at_once(database_url: str, amqp_url: str) -> None:
    async with parent(database_url, amqp_url, http="slow") as one:
        pid = await one.until_leading()
        # So that only being killed can end it.
        os.kill(pid, signal.SIGSTOP)
        one.process.send_signal(signal.SIGTERM)
        one.process.send_signal(signal.SIGTERM)
        await one.ended()
        await until_gone(pid, seconds=2)


async def test_a_leader_that_does_not_stop_in_time_is_killed(database_url: str, amqp_url: str) -> None:
    async with executor("one", database_url, amqp_url, times=ProcessTimes(stop=0.3)) as one:
        await one.until_leading()
        pid = one.signal(signal.SIGSTOP)
        began_at = time.monotonic()
        await one.stop()
        assert time.monotonic() - began_at < 3.0
        assert not is_alive(pid)


async def test_a_leader_that_says_nothing_is_reported_and_then_replaced(
    database_url: str, amqp_url: str
) -> None:
    times = ProcessTimes(silent=0.8, hung=2.5, pause_first=0.01)
    async with executor("one", database_url, amqp_url, times=times) as one:
        await one.until_leading()
        assert one.leader.trouble() is None
        pid = one.signal(signal.SIGSTOP)
        await until(lambda: "has said nothing for" in (one.leader.trouble() or ""), deadline_seconds=10)
        await until(lambda: one.leader.starts == 2, "it is replaced", deadline_seconds=10)
        assert not is_alive(pid)
        await one.until_leading()
        assert one.leader.trouble() is None


async def test_a_process_that_cannot_live_is_started_ever_more_rarely_and_says_why(
    database_url: str, amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    command = (sys.executable, "-c", "raise SystemExit(7)")
    times = ProcessTimes(pause_first=0.05, pause_max=0.4)
    with caplog.at_level(logging.ERROR):
        async with executor("one", database_url, amqp_url, command=command, times=times) as one:
            await until(lambda: one.leader.starts >= 6, "it was started again", deadline_seconds=30)
            trouble = one.leader.trouble() or ""
            assert "exit code 7" in trouble
            assert "starts again in" in trouble
            await one.stop()
    pauses = [
        vars(record)["starts_again_in_seconds"]
        for record in caplog.records
        if record.message == "leader_process_ended"
    ]
    assert len(pauses) >= 5
    # Each pause is between a half and the whole of what it may be.
    bounds = [0.05, 0.1, 0.2, 0.4, 0.4]
    assert all(
        bound / 2 - 0.05 <= pause <= bound + 0.05 for pause, bound in zip(pauses, bounds, strict=False)
    )


async def test_a_leader_without_its_tables_waits_and_leads_once_they_are_there(
    empty_database_url: str, amqp_url: str
) -> None:
    async with executor("one", empty_database_url, amqp_url) as one:
        await until(lambda: one.leader.status is not None, "it has its settings", deadline_seconds=20)
        assert one.leader.starts == 1
        await Store(empty_database_url).create_tables()
        await one.until_leading()


@pytest.mark.parametrize("frozen", ["broker", "database"])
async def test_a_server_that_says_nothing_does_not_keep_a_leader_from_its_end(
    database_url: str, amqp_url: str, frozen: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxy_to(amqp_url) as broker, proxy_to(database_url) as database:
        async with executor("one", database.url, broker.url) as one:
            await one.until_leading()
            {"broker": broker, "database": database}[frozen].freeze()
            seconds = await seconds_to_stop(one)
            print(f"{seconds:.2f} s")
        broker.thaw()
        database.thaw()
    assert seconds < 4.0
    assert not [each for each in caplog.records if each.message == "leader_process_killed"]


async def seconds_to_stop(one: Executor) -> float:
    began_at = time.monotonic()
    await one.stop()
    return time.monotonic() - began_at
