"""Plain functions that are stopped, with their child or with the worker: nothing they started stays."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tests.unit.worker.children import pid_of
from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import failure_in, gone, has_text, pids_in, until
from turnstile.common.domain.outcomes import Cancelled, TimedOut
from turnstile.worker.runners import Interrupted, RunLimits
from turnstile.worker.runners.child_pool import ChildRunner
from turnstile.worker.runners.guardian import Guardian

ACTIONS = """
import os, signal, subprocess, time
from turnstile.worker import Context, action

@action("pid")
def pid() -> int:
    return os.getpid()

@action("deaf")
def deaf(path: str):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while True:
        time.sleep(1000)

@action("sleep")
def sleep(path: str):
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! >>$0; wait", path])
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n{child.pid}\\n")
    child.wait()
    time.sleep(1000)

@action("poll")
def poll(context: Context, path: str):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while True:
        if context.cancelled:
            with open(path + ".stopped", "w") as file:
                file.write("stopped\\n")
        context.check_cancelled()
        time.sleep(0.01)
"""


async def test_a_timeout_ends_a_blocking_function_and_its_commands(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    report = await child_runner.run(make_call("sleep", path=str(path), timeout_seconds=1.5))
    assert isinstance(report.outcome, TimedOut)
    pids = pids_in(path, 3)
    assert len(pids) == 3
    await gone(pids)
    assert await pid_of(child_runner, make_call) not in pids


async def test_a_function_that_ignores_the_signal_is_killed_after_the_grace(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path, limits: RunLimits
) -> None:
    path = tmp_path / "pids"
    call = make_call("deaf", path=str(path))
    running = asyncio.create_task(child_runner.run(call))
    await until(lambda: has_text(path))
    asked_at = time.monotonic()
    call.stop.ask("cancel", "enough")
    assert isinstance((await running).outcome, Cancelled)
    assert limits.grace_seconds <= time.monotonic() - asked_at < limits.grace_seconds + 3
    await gone(pids_in(path, 1))


async def test_a_cancel_is_seen_inside_the_child(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    call = make_call("poll", path=str(path))
    running = asyncio.create_task(child_runner.run(call))
    await until(lambda: has_text(path))
    call.stop.ask("cancel", "no longer needed")
    report = await running
    assert isinstance(report.outcome, Cancelled)
    assert has_text(Path(f"{path}.stopped"))
    assert "ExecutionStopped: no longer needed" in report.log
    await gone(pids_in(path, 1))


async def test_a_drain_interrupts(child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    call = make_call("poll", path=str(path))
    running = asyncio.create_task(child_runner.run(call))
    await until(lambda: has_text(path))
    call.stop.ask("drain", "leaving")
    assert (await running).outcome == Interrupted(kind="drain", reason="leaving")


async def test_a_cancel_is_obeyed_while_the_child_still_starts(
    make_module: MakeModule, make_call: MakeCall, limits: RunLimits, guardian: Guardian, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    start = f"import os, time\nopen({str(path)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)\n"
    runner = ChildRunner([make_module(start)], size=1, limits=limits, guardian=guardian)
    call = make_call("any")
    running = asyncio.create_task(runner.run(call))
    await until(lambda: has_text(path))
    call.stop.ask("cancel", "no")
    assert isinstance((await running).outcome, Cancelled)
    await gone(pids_in(path, 1))


async def test_a_child_killed_while_it_runs_takes_its_group_along(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    running = asyncio.create_task(child_runner.run(make_call("sleep", path=str(path))))
    await until(lambda: len(pids_in(path, 3)) == 3)
    children = pids_in(path, 3)
    os.kill(child_among(children), signal.SIGKILL)
    assert failure_in(await running).type == "ProcessDied"
    await gone(children)


def child_among(pids: list[int]) -> int:
    """Return the leader: the one whose group has its own number."""
    (leader,) = [pid for pid in pids if os.getpgid(pid) == pid]
    return leader


WORKER = """
import asyncio, sys
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.runners import Call, RunLimits, StopRequest
from turnstile.worker.runners.assembly import Runners

async def main(module, path):
    def call(ref, entrypoint, parameters):
        return Call(execution_id=ExecutionId(1), attempt=Attempt(1), action_ref=ref, entrypoint=entrypoint,
                    parameters_json=parameters, timeout_seconds=None, traceparent=None, stop=StopRequest())
    runners = Runners([], [module], concurrency=2, limits=RunLimits())
    command = ["sh", "-c", "echo $$ >>$0; sleep 1000 & echo $! >>$0; wait", path]
    await asyncio.gather(
        runners.runner_for("sleep", "python").run(call("sleep", None, '{"path": "%s"}' % path)),
        runners.runner_for("command", "command").run(call("command", command, "{}")),
    )

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_worker_that_is_killed_leaves_nothing_running(module: str, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    script = tmp_path / "worker_process.py"
    script.write_text(textwrap.dedent(WORKER))
    repository = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'src'}{os.pathsep}{tmp_path}"}
    process = subprocess.Popen([sys.executable, str(script), module, str(path)], env=environment)
    try:
        asyncio.run(until(lambda: len(pids_in(path, 5)) == 5))
    finally:
        process.kill()
        process.wait()
    asyncio.run(gone(pids_in(path, 5)))
