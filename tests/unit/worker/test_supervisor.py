"""A run is killed whole: processes that left its group, and all runs of a worker that died or is stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.support.traffic import until
from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, gone, is_alive, pids_in, result_of, unreaped
from turnstile.worker.core.outcomes import Cancelled
from turnstile.worker.runners.base import Call, Interrupted, RunLimits, RunReport
from turnstile.worker.runners.registry import Runners
from turnstile.worker.runners.supervisor import TAG_VARIABLE, ProcessTag, Supervisor
from turnstile.worker.runners.supervisor_main import clock

ESCAPING = str(Path(__file__).with_name("escaping.py"))
ACTIONS = f"""
import os, subprocess, sys, time
from turnstile.worker import action

@action("escaping")
def escaping(path: str, mode: str):
    subprocess.run([sys.executable, "-I", "-S", {ESCAPING!r}, path, mode], check=True)
    return 5

@action("sleep")
def sleep(path: str):
    with open(path, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    time.sleep(1000)
"""

Kind = Literal["command", "python"]
StartRun = Callable[..., tuple[ProcessTag, int]]


@pytest.fixture
async def runners(module: str, limits: RunLimits) -> AsyncIterator[Runners]:
    async with Runners([], [module], concurrency=2, limits=limits) as runners:
        yield runners
        # The event loop reaps a run that was cancelled, and it is about to close.
        await until(lambda: not unreaped())


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The file of the processes' pids; processes that a failed test left alive end with it."""
    path = tmp_path / "pids"
    yield path
    for pid in numbers_in(path):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class Escaping:
    """Starts the program as a command, or from a plain function."""

    def __init__(self, runners: Runners, make_call: MakeCall, path: Path) -> None:
        self._runners = runners
        self._make_call = make_call
        self._path = path

    def start(self, kind: Kind, mode: str) -> tuple[Call, asyncio.Task[RunReport]]:
        argv = [sys.executable, "-I", "-S", ESCAPING, str(self._path), mode]
        call = self._make_call("escaping", path=str(self._path), mode=mode)
        call = replace(call, entrypoint=argv if kind == "command" else None)
        return call, asyncio.create_task(self._runners.runner_for("escaping", kind).run(call))

    async def all_started(self, count: int = 7) -> list[int]:
        await until(lambda: len(pids_in(self._path, count)) == count)
        return pids_in(self._path, count)


@pytest.fixture
def escaping(runners: Runners, make_call: MakeCall, path: Path) -> Escaping:
    return Escaping(runners, make_call, path)


@pytest.mark.parametrize("kind", ["command", "python"])
@pytest.mark.parametrize(("mode", "count"), [("wait", 7), ("stubborn", 8)])
async def test_a_stop_ends_processes_that_left_the_group(
    escaping: Escaping, kind: Kind, mode: str, count: int
) -> None:
    call, running = escaping.start(kind, mode)
    pids = await escaping.all_started(count)
    call.stop.request("cancel", "no longer needed")
    assert isinstance((await running).outcome, Cancelled)
    await gone(pids)


@pytest.mark.parametrize("mode", ["end", "fail"])
async def test_processes_that_a_command_leaves_at_its_end_are_killed(escaping: Escaping, mode: str) -> None:
    report = await escaping.start("command", mode)[1]
    if mode == "end":
        assert result_of(report) == "5"
    else:
        assert "exit code 3" in failed_in(report).failure.message
    await gone(await escaping.all_started())


async def test_processes_that_a_function_leaves_end_with_its_child_process(
    module: str, limits: RunLimits, make_call: MakeCall, path: Path
) -> None:
    async with Runners([], [module], concurrency=2, limits=limits) as runners:
        escaping = Escaping(runners, make_call, path)
        assert result_of(await escaping.start("python", "end")[1]) == "5"
        pids = await escaping.all_started()
        # Until then they may be a pool that the next call uses again.
        assert all(is_alive(pid) for pid in pids[1:])
    await gone(pids)


async def test_the_end_of_one_run_leaves_its_neighbour_running(
    runners: Runners, escaping: Escaping, make_command_call: MakeCall
) -> None:
    neighbour = make_command_call("sleep", "1000")
    beside = asyncio.create_task(runners.runner_for("sleep", "command").run(neighbour))
    call, running = escaping.start("command", "wait")
    pids = await escaping.all_started()
    call.stop.request("cancel", "no")
    await running
    await gone(pids)
    assert not beside.done()
    neighbour.stop.request("cancel", "no")
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


async def test_a_chain_of_processes_that_forks_all_the_time_is_killed_whole(
    runners: Runners, make_command_call: MakeCall, path: Path
) -> None:
    call = make_command_call(sys.executable, "-I", "-S", "-c", CHAIN, str(path))
    running = asyncio.create_task(runners.runner_for("chain", "command").run(call))
    await until(lambda: len(numbers_in(path)) > 20)
    call.stop.request("lease_lost", "the lease is over")
    assert isinstance((await running).outcome, Interrupted)
    await gone(numbers_in(path))
    links = numbers_in(path)
    assert len(links) < 1000
    await gone(links)


@pytest.fixture
def start_run(supervisor: Supervisor) -> Iterator[StartRun]:
    """Start a tagged process and register it; return its tag and pid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(supervised_by: Supervisor = supervisor) -> tuple[ProcessTag, int]:
        tag = ProcessTag.new()
        supervised_by.announce(tag)
        environment = {**os.environ, TAG_VARIABLE: tag.text}
        started.append(subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True))
        supervised_by.started(tag, started[-1].pid)
        return tag, started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


async def killed(supervisor: Supervisor, tag: ProcessTag) -> None:
    """Have a run killed, and wait for the supervisor's answer."""
    answered = asyncio.Event()
    supervisor.kill(tag, answered.set)
    async with asyncio.timeout(10):
        await answered.wait()


async def test_runs_past_the_deadline_are_killed_and_so_are_runs_started_later(
    supervisor: Supervisor, start_run: StartRun
) -> None:
    _, first = start_run()
    # The lease's thread sets the deadline.
    setting = threading.Thread(target=supervisor.set_deadline, args=(clock() + 0.3,))
    setting.start()
    setting.join()
    assert is_alive(first)
    await gone([first])
    _, second = start_run()
    await gone([second])
    supervisor.set_deadline(clock() + 1000)
    (_, third), (tag, fourth) = start_run(), start_run()
    await killed(supervisor, tag)
    await gone([fourth])
    assert is_alive(third)


async def test_a_run_that_was_only_announced_is_found_by_its_tag(supervisor: Supervisor) -> None:
    # A worker may die between the start of a process and its registration.
    tag = ProcessTag.new()
    supervisor.announce(tag)
    environment = {TAG_VARIABLE: tag.text}
    process = await asyncio.create_subprocess_exec("/bin/sleep", "1000", env=environment)
    supervisor.close()
    assert await process.wait() == -signal.SIGKILL


def supervisor_pids() -> set[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in children if b"supervisor_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_supervisor_that_died_or_hangs_is_replaced_by_one_with_the_same_runs(
    supervisor: Supervisor, start_run: StartRun, which: signal.Signals
) -> None:
    (tag, first), (_, second) = start_run(), start_run()
    # The kernel's list of children may miss one while others end.
    await until(lambda: len(supervisor_pids()) == 1)
    (old,) = supervisor_pids()
    supervisor.set_deadline(clock() + 1000)
    os.kill(old, which)
    while which == signal.SIGSTOP and is_alive(old):
        # The worker notices it once the pipe is full.
        supervisor.set_deadline(clock() + 1000)
    await until(lambda: bool(supervisor_pids() - {old}))
    await killed(supervisor, tag)
    await gone([first])
    assert is_alive(second)
    supervisor.set_deadline(clock())
    await gone([second])


async def test_without_a_supervisor_a_kill_is_answered_at_once(
    supervisor: Supervisor, start_run: StartRun
) -> None:
    tag, _ = start_run()
    supervisor.close()
    await killed(supervisor, tag)


async def test_the_supervisor_is_started_without_the_settings_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTILE_DATABASE_URL", "secret")
    before = supervisor_pids()
    with closing(Supervisor()):
        # The kernel's list of children may miss one while others end.
        await until(lambda: len(supervisor_pids() - before) == 1)
        (pid,) = supervisor_pids() - before
        assert b"TURNSTILE_" not in Path(f"/proc/{pid}/environ").read_bytes()  # noqa: ASYNC240


WORKER = """
import asyncio, os, signal, sys
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.runners.base import Call, RunLimits, StopRequest
from turnstile.worker.runners.registry import Runners
from turnstile.worker.runners.supervisor_main import clock

async def main(module, path, which):
    def call(ref, entrypoint, parameters):
        return Call(execution_id=ExecutionId(1), attempt=Attempt(1), action_ref=ref, entrypoint=entrypoint,
                    parameters_json=parameters, timeout_seconds=None, traceparent=None, stop=StopRequest())
    async with Runners([], [module], concurrency=2, limits=RunLimits()) as runners:
        command = ["sh", "-c", "echo $$ >>$0; setsid sleep 1000 & echo $! >>$0; wait", path]
        runs = asyncio.gather(
            runners.runner_for("sleep", "python").run(call("sleep", None, '{"path": "%s"}' % path)),
            runners.runner_for("command", "command").run(call("command", command, "{}")),
        )
        while not os.path.exists(path) or len(open(path).read().split()) < 3:
            await asyncio.sleep(0.01)
        if int(which) == signal.SIGSTOP:
            runners.supervisor.set_deadline(clock() + 0.3)
        os.kill(os.getpid(), int(which))
        for report in await runs:
            print(report.outcome.kind)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_died_or_is_stopped_past_its_deadline_has_nothing_running(
    module: str, path: Path, tmp_path: Path, which: signal.Signals
) -> None:
    script = tmp_path / "worker_process.py"
    script.write_text(textwrap.dedent(WORKER))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    argv = [sys.executable, str(script), module, str(path), str(int(which))]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as worker:
        try:
            asyncio.run(until(lambda: len(pids_in(path, 3)) == 3))
            asyncio.run(gone(pids_in(path, 3)))
            if which == signal.SIGSTOP:
                assert Path(f"/proc/{worker.pid}/stat").read_text().split()[2] == "T"
                worker.send_signal(signal.SIGCONT)
            printed, _ = worker.communicate(timeout=10)
        finally:
            worker.kill()
    assert printed.decode().split() == (["lease_lost", "lease_lost"] if which == signal.SIGSTOP else [])
