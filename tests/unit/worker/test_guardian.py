"""The process that ends runs when the worker cannot: it died, it is stopped, its time is over."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.worker.conftest import MakeModule
from tests.unit.worker.waiting import gone, is_alive, pids_in, until
from turnstile.worker.runners.guardian import Guardian
from turnstile.worker.runners.guardian_main import clock
from turnstile.worker.runners.mark import VARIABLE, RunMark

StartRun = Callable[..., tuple[RunMark, int]]


@pytest.fixture
def start_run(guardian: Guardian) -> Iterator[StartRun]:
    """Start a marked process and note it; returns its mark and number."""
    started: list[subprocess.Popen[bytes]] = []

    def start(noted_by: Guardian = guardian) -> tuple[RunMark, int]:
        mark = RunMark.new()
        noted_by.announce(mark)
        environment = {**os.environ, VARIABLE: mark.text}
        started.append(subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True))
        noted_by.watch(mark, started[-1].pid)
        return mark, started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


async def ended(guardian: Guardian, mark: RunMark) -> None:
    """Have a run ended, and wait for the word that it was."""
    said = asyncio.Event()
    guardian.end(mark, said.set)
    async with asyncio.timeout(10):
        await said.wait()


async def test_what_runs_past_the_deadline_dies_and_so_does_what_is_started_later(
    guardian: Guardian, start_run: StartRun
) -> None:
    _, first = start_run()
    guardian.hold_until(clock() + 0.3)
    assert is_alive(first)
    await gone([first])
    _, second = start_run()
    await gone([second])
    guardian.hold_until(clock() + 1000)
    (_, third), (mark, fourth) = start_run(), start_run()
    await ended(guardian, mark)
    await gone([fourth])
    assert is_alive(third)


@pytest.mark.parametrize("later_seconds", [1000.0, None])
async def test_a_later_deadline_or_none_replaces_the_one_before(
    guardian: Guardian, start_run: StartRun, later_seconds: float | None
) -> None:
    deadline_seconds = clock() + 0.3
    with Guardian() as other:
        (_, kept), (_, killed) = start_run(), start_run(other)
        other.hold_until(deadline_seconds + 0.1)
        guardian.hold_until(deadline_seconds)
        guardian.hold_until(None if later_seconds is None else clock() + later_seconds)
        await gone([killed])
    assert is_alive(kept)


async def test_a_deadline_may_be_told_from_any_thread(guardian: Guardian, start_run: StartRun) -> None:
    _, pid = start_run()
    thread = threading.Thread(target=guardian.hold_until, args=(clock(),))
    thread.start()
    thread.join()
    await gone([pid])


async def test_what_died_of_its_deadline_can_be_told_from_what_died_otherwise(
    guardian: Guardian, start_run: StartRun
) -> None:
    (in_time, first), (overdue, second) = start_run(), start_run()
    await ended(guardian, in_time)
    guardian.hold_until(clock())
    await gone([first, second])
    assert (guardian.ended_overdue(in_time), guardian.ended_overdue(overdue)) == (False, True)


async def test_a_run_that_was_only_announced_is_found_by_its_mark(guardian: Guardian) -> None:
    # A worker may be killed between starting a process and saying so.
    mark = RunMark.new()
    guardian.announce(mark)
    environment = {VARIABLE: mark.text}
    process = await asyncio.create_subprocess_exec("/bin/sleep", "1000", env=environment)
    guardian.close()
    assert await process.wait() == -signal.SIGKILL


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def guardian_pids() -> set[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in children if b"guardian_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_guardian_that_died_or_hangs_is_replaced_by_one_that_knows_all(
    guardian: Guardian, start_run: StartRun, which: signal.Signals
) -> None:
    ((mark, first), (_, second)), (old,) = (start_run(), start_run()), guardian_pids()
    guardian.hold_until(clock() + 1000)
    os.kill(old, which)
    while which == signal.SIGSTOP and is_alive(old):
        # It is noticed when what it was told is more than the pipe holds.
        guardian.hold_until(clock() + 1000)
    await until(lambda: bool(guardian_pids() - {old}))
    await ended(guardian, mark)
    await gone([first])
    assert is_alive(second)
    guardian.hold_until(clock())
    await gone([second])


async def test_without_a_guardian_an_order_to_end_is_answered_at_once(
    guardian: Guardian, start_run: StartRun
) -> None:
    mark, _ = start_run()
    guardian.close()
    await ended(guardian, mark)


WORKER = """
import asyncio, os, signal, sys
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.runners import Call, RunLimits, StopRequest
from turnstile.worker.runners.assembly import Runners
from turnstile.worker.runners.guardian_main import clock

async def main(module, path):
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
        runners.hold_until(clock() + 0.3)
        os.kill(os.getpid(), signal.SIGSTOP)
        for report in await runs:
            print(report.outcome.kind)

asyncio.run(main(*sys.argv[1:]))
"""
ACTIONS = """
import os, time
from turnstile.worker import action

@action("sleep")
def sleep(path: str):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(1000)
"""


def test_a_stopped_worker_has_nothing_running_past_its_deadline_and_calls_it_a_lost_lease(
    make_module: MakeModule, tmp_path: Path
) -> None:
    module, path, script = make_module(ACTIONS), tmp_path / "pids", tmp_path / "worker_process.py"
    script.write_text(textwrap.dedent(WORKER))
    repository = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{tmp_path}"}
    argv = [sys.executable, str(script), module, str(path)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as worker:
        try:
            asyncio.run(until(lambda: len(pids_in(path, 3)) == 3))
            asyncio.run(gone(pids_in(path, 3)))
            assert Path(f"/proc/{worker.pid}/stat").read_text().split()[2] == "T"
            worker.send_signal(signal.SIGCONT)
            said, _ = worker.communicate(timeout=10)
        finally:
            worker.kill()
    assert said.decode().split() == ["lease_lost", "lease_lost"]


async def test_it_is_started_without_the_settings_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_DATABASE_URL", "secret")
    before = guardian_pids()
    with Guardian():
        # The kernel's list of children may leave one out while others end.
        await until(lambda: len(guardian_pids() - before) == 1)
        (pid,) = guardian_pids() - before
        assert b"TURNSTILE_" not in environment_of(pid)
