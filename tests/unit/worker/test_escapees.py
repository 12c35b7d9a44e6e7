"""Processes that leave their run's group and session: they end with the run all the same."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, gone, is_alive, pids_in, result_of, stopped_in, until
from turnstile.common.domain.outcomes import Cancelled, TimedOut
from turnstile.worker.runners import Call, Interrupted, RunLimits, RunReport
from turnstile.worker.runners.assembly import Runners

ESCAPING = str(Path(__file__).with_name("escaping.py"))
ACTIONS = f"""
import subprocess, sys
from turnstile.worker import action

@action("escaping")
def escaping(path: str, mode: str):
    subprocess.run([sys.executable, "-I", "-S", {ESCAPING!r}, path, mode], check=True)
    return 5
"""

Kind = Literal["command", "python"]


@pytest.fixture
async def runners(module: str, limits: RunLimits) -> AsyncIterator[Runners]:
    async with Runners([], [module], concurrency=2, limits=limits) as runners:
        yield runners


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The file of the processes' numbers; whatever a failing test left alive ends with it."""
    path = tmp_path / "pids"
    yield path
    for pid in map(int, path.read_text().split()):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process that somebody else started."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    assert is_alive(process.pid)
    process.kill()
    process.wait()


class Escaping:
    """Starts the program as a command, or from a plain function."""

    def __init__(self, runners: Runners, make_call: MakeCall, path: Path) -> None:
        self._runners = runners
        self._make_call = make_call
        self._path = path
        self._processes = 0

    def call(self, kind: Kind, mode: str, timeout_seconds: float | None = 20.0) -> Call:
        self._processes = 8 if mode == "stubborn" else 7
        call = self._make_call("escaping", timeout_seconds=timeout_seconds, path=str(self._path), mode=mode)
        argv = [sys.executable, "-I", "-S", ESCAPING, str(self._path), mode]
        return replace(call, entrypoint=argv if kind == "command" else None)

    def start(self, kind: Kind, call: Call) -> asyncio.Task[RunReport]:
        return asyncio.create_task(self._runners.runner_for("escaping", kind).run(call))

    @property
    def pids(self) -> list[int]:
        return pids_in(self._path, self._processes)

    async def all_started(self) -> None:
        await until(lambda: bool(self.pids))


@pytest.fixture
def escaping(runners: Runners, make_call: MakeCall, path: Path) -> Escaping:
    return Escaping(runners, make_call, path)


@pytest.mark.parametrize("kind", ["command", "python"])
@pytest.mark.parametrize("mode", ["wait", "stubborn"])
@pytest.mark.usefixtures("bystander")
async def test_a_cancel_ends_what_left_the_group_too(escaping: Escaping, kind: Kind, mode: str) -> None:
    call = escaping.call(kind, mode)
    running = escaping.start(kind, call)
    await escaping.all_started()
    call.stop.ask("cancel", "no longer needed")
    assert isinstance((await running).outcome, Cancelled)
    await gone(escaping.pids)


@pytest.mark.parametrize("kind", ["command", "python"])
async def test_a_lost_lease_ends_what_left_the_group_too(escaping: Escaping, kind: Kind) -> None:
    call = escaping.call(kind, "wait")
    running = escaping.start(kind, call)
    await escaping.all_started()
    call.stop.ask("lease_lost", "the lease is over")
    assert isinstance(stopped_in(await running), Interrupted)
    await gone(escaping.pids)


async def test_a_timeout_ends_what_left_the_group_within_the_grace(
    escaping: Escaping, limits: RunLimits
) -> None:
    running = escaping.start("command", escaping.call("command", "stubborn", timeout_seconds=2.0))
    await escaping.all_started()
    async with asyncio.timeout(2.0 + limits.grace_seconds + 3):
        assert isinstance((await running).outcome, TimedOut)
    await gone(escaping.pids)


@pytest.mark.parametrize("mode", ["end", "fail"])
@pytest.mark.usefixtures("bystander")
async def test_what_a_command_leaves_when_it_ends_by_itself_is_killed(escaping: Escaping, mode: str) -> None:
    report = await escaping.start("command", escaping.call("command", mode))
    if mode == "end":
        assert result_of(report) == "5"
    else:
        assert "exit code 3" in failed_in(report).failure.message
    await gone(escaping.pids)


async def test_what_a_function_leaves_ends_with_its_process(escaping: Escaping, runners: Runners) -> None:
    # Until then it may be a pool that the next call uses again.
    assert result_of(await escaping.start("python", escaping.call("python", "end"))) == "5"
    assert all(is_alive(pid) for pid in escaping.pids[1:])
    await runners.close()
    await gone(escaping.pids)


async def test_what_left_the_group_ends_with_a_leader_killed_from_outside(escaping: Escaping) -> None:
    running = escaping.start("command", escaping.call("command", "wait"))
    await escaping.all_started()
    os.kill(escaping.pids[0], signal.SIGKILL)
    assert "SIGKILL" in failed_in(await running).failure.message
    await gone(escaping.pids)


async def test_one_run_ends_and_its_neighbour_goes_on(escaping: Escaping, make_call: MakeCall) -> None:
    neighbour = replace(make_call("sleep"), entrypoint=["sleep", "1000"])
    beside = escaping.start("command", neighbour)
    call = escaping.call("command", "wait")
    running = escaping.start("command", call)
    await escaping.all_started()
    call.stop.ask("cancel", "no")
    await running
    await gone(escaping.pids)
    assert not beside.done()
    neighbour.stop.ask("cancel", "no")
    assert isinstance((await beside).outcome, Cancelled)


CHAIN = """
import os, sys, time
for _ in range(1000):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    if os.fork():
        time.sleep(1000)
    os.setsid()
    time.sleep(0.004)
"""


async def test_a_chain_of_processes_that_grows_all_the_time_is_caught_whole(
    runners: Runners, make_call: MakeCall, path: Path
) -> None:
    argv = [sys.executable, "-I", "-S", "-c", CHAIN, str(path)]
    call = replace(make_call("chain"), entrypoint=argv)
    running = asyncio.create_task(runners.runner_for("chain", "command").run(call))
    await until(lambda: path.exists() and len(numbers_in(path)) > 20)
    call.stop.ask("lease_lost", "the lease is over")
    await running
    await gone(numbers_in(path))
    links = numbers_in(path)
    assert len(links) < 1000
    await gone(links)


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]
