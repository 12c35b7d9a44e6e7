"""Plain functions in child processes: outcomes, reuse, stops, deaths."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.domain.outcomes import Cancelled, TimedOut
from tests.worker.conftest import MakeCall, MakeModule
from tests.worker.waiting import (
    failed_in,
    failure_in,
    gone,
    has_text,
    peak_bytes,
    pids_in,
    result_of,
    until,
)
from worker.runners import Call, Interrupted, RunLimits
from worker.runners.child_pool import ChildRunner
from worker.runners.guardian import Guardian

ACTIONS = """
import logging, os, signal, struct, subprocess, sys, threading, time
from worker import Context, PermanentError, action

@action("pid")
def pid() -> int:
    return os.getpid()

@action("add")
def add(a: int, b: int) -> int:
    return a + b

@action("print")
def print_(context: Context, text: str):
    print(text)
    print("to stderr", file=sys.stderr)
    context.logger.warning("logged %s", context.execution_id)
    logging.getLogger("library").info("from a library")
    subprocess.run(["echo", "from a command"])

@action("large")
def large(size: int) -> str:
    print("y" * size)
    return "x" * size

@action("raise")
def raise_():
    raise PermanentError("never")

@action("exit")
def exit_(code: int, how: str):
    print("last words")
    if how == "signal":
        os.kill(os.getpid(), code)
    if how == "sys":
        sys.exit(code)
    os._exit(code)

@action("close")
def close():
    for fd in range(3, 64):
        try:
            os.close(fd)
        except OSError:
            pass
    time.sleep(1000)

@action("babble")
def babble(length: int):
    # The socket to the worker is the first descriptor after the usual three that is a socket.
    fd = next(fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")
              and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"))
    os.write(fd, struct.pack("!I", length) + b"x" * 1000)
    time.sleep(1000)

@action("flood")
def flood(context: Context, size: int):
    context.logger.info("long " + "x" * 200_000)
    for _ in range(size // 1_000_000):
        sys.stdout.write("y" * 1_000_000)
    print("the end")

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

@action("until")
def until(context: Context, path: str):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists(path + ".go"):
        context.check_cancelled()
        time.sleep(0.01)
    return "whole"

@action("late")
def late():
    threading.Timer(0.05, lambda: print("too late")).start()

@action("environment")
def environment():
    return os.environ.get("PYTHONPATH")

async def undecorated(a: int) -> int:
    return a * 2

def also_undecorated(a: int) -> int:
    return a * 3
"""


@pytest.fixture
def module(make_module: MakeModule) -> str:
    return make_module(ACTIONS)


@pytest.fixture
async def runner(module: str, limits: RunLimits, guardian: Guardian) -> AsyncIterator[ChildRunner]:
    runner = ChildRunner([module], size=2, limits=limits, guardian=guardian)
    yield runner
    await runner.close()


def let_go(path: Path) -> None:
    Path(f"{path}.go").touch()


async def pid_of(runner: ChildRunner, make_call: MakeCall) -> int:
    return int(result_of(await runner.run(make_call("pid"))))


async def test_the_return_value_is_the_result(runner: ChildRunner, make_call: MakeCall) -> None:
    assert result_of(await runner.run(make_call("add", a=2, b=3))) == "5"


async def test_a_child_is_used_again_and_ends_with_the_runner(
    runner: ChildRunner, make_call: MakeCall
) -> None:
    pid = await pid_of(runner, make_call)
    failed_in(await runner.run(make_call("raise")))
    assert await pid_of(runner, make_call) == pid
    assert pid != os.getpid()
    await runner.close()
    await gone([pid])


async def test_two_calls_at_once_run_in_two_children_and_a_third_waits(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    running = [asyncio.create_task(runner.run(make_call("until", path=str(path)))) for _ in range(3)]
    await until(lambda: len(pids_in(path, 2)) == 2)
    assert len(set(pids_in(path, 2))) == 2
    let_go(path)
    assert [result_of(await each) for each in running] == ['"whole"'] * 3
    assert len(set(pids_in(path, 3))) == 2


async def test_wrong_parameters_fail_for_good_before_the_function_runs(
    runner: ChildRunner, make_call: MakeCall
) -> None:
    outcome = failed_in(await runner.run(make_call("add", a="many", b=1)))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidParameters", False)
    assert outcome.failure.message.startswith("a: Input should be a valid integer")


async def test_an_exception_comes_back_with_its_traceback_in_the_log(
    runner: ChildRunner, make_call: MakeCall
) -> None:
    report = await runner.run(make_call("raise"))
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.failure.message) == ("PermanentError", "never")
    assert not outcome.retryable
    assert "in raise_" in report.log


async def test_all_that_is_printed_and_logged_is_in_the_log_of_that_run(
    runner: ChildRunner, make_call: MakeCall, caplog: pytest.LogCaptureFixture
) -> None:
    call = make_call("print", text="hello")
    with caplog.at_level(logging.INFO, logger="worker.action"):
        report = await runner.run(call)
    lines = report.log.splitlines()
    assert lines[:2] == ["hello", "to stderr"]
    assert lines[2].endswith(f"WARNING logged {call.execution_id}")
    assert lines[3].endswith("INFO library: from a library")
    assert lines[4] == "from a command"
    (record,) = [record for record in caplog.records if record.name == "worker.action"]
    assert record.__dict__["execution_id"] == call.execution_id
    assert (await runner.run(make_call("pid"))).log == ""


async def test_a_large_result_and_a_large_output_pass(runner: ChildRunner, make_call: MakeCall) -> None:
    report = await runner.run(make_call("large", size=99_000))
    assert json.loads(result_of(report)) == "x" * 99_000
    assert report.log.endswith("yyy\n")
    assert failure_in(await runner.run(make_call("large", size=200_000))).type == "ResultTooLarge"


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("os", 3, "exit code 3"), ("signal", signal.SIGSEGV, "SIGSEGV"), ("signal", signal.SIGKILL, "SIGKILL")],
)
async def test_a_child_that_dies_is_a_failure_that_may_be_retried_and_is_replaced(
    runner: ChildRunner, make_call: MakeCall, how: str, code: int, words: str
) -> None:
    pid = await pid_of(runner, make_call)
    report = await runner.run(make_call("exit", how=how, code=int(code)))
    outcome = failed_in(report)
    assert outcome.failure.type == "ProcessDied"
    assert words in outcome.failure.message
    assert (words == "SIGKILL") == ("memory ran out" in outcome.failure.message)
    assert outcome.retryable
    assert report.log == "last words\n"
    assert await pid_of(runner, make_call) != pid


async def test_sys_exit_is_a_failure_and_the_child_lives(runner: ChildRunner, make_call: MakeCall) -> None:
    pid = await pid_of(runner, make_call)
    assert failure_in(await runner.run(make_call("exit", how="sys", code=3))).type == "SystemExit"
    assert await pid_of(runner, make_call) == pid


async def test_a_child_killed_while_idle_is_replaced_unseen(runner: ChildRunner, make_call: MakeCall) -> None:
    pid = await pid_of(runner, make_call)
    os.kill(pid, signal.SIGKILL)
    await gone([pid])
    await asyncio.sleep(0)
    assert await pid_of(runner, make_call) != pid


async def test_a_child_killed_while_it_runs_takes_its_group_along(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    running = asyncio.create_task(runner.run(make_call("sleep", path=str(path))))
    await until(lambda: len(pids_in(path, 3)) == 3)
    children = pids_in(path, 3)
    os.kill(child_among(children), signal.SIGKILL)
    assert failure_in(await running).type == "ProcessDied"
    await gone(children)


def child_among(pids: list[int]) -> int:
    """Return the leader: the one whose group has its own number."""
    (leader,) = [pid for pid in pids if os.getpgid(pid) == pid]
    return leader


async def test_a_child_that_cuts_its_line_is_killed(runner: ChildRunner, make_call: MakeCall) -> None:
    async with asyncio.timeout(10):
        outcome = failed_in(await runner.run(make_call("close")))
    assert outcome.failure.type == "ProcessDied"
    assert "closed its connection" in outcome.failure.message


async def test_a_timeout_ends_a_blocking_function_and_its_commands(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    report = await runner.run(make_call("sleep", path=str(path), timeout_seconds=0.5))
    assert isinstance(report.outcome, TimedOut)
    pids = pids_in(path, 3)
    assert len(pids) == 3
    await gone(pids)
    assert await pid_of(runner, make_call) not in pids


@pytest.mark.parametrize("length", [1000, 4_000_000_000])
async def test_a_child_that_sends_what_is_no_message_is_killed_and_its_words_are_not_kept(
    runner: ChildRunner, make_call: MakeCall, length: int
) -> None:
    async with asyncio.timeout(10):
        outcome = failed_in(await runner.run(make_call("babble", length=length)))
    assert outcome.failure.type == "ProcessDied"
    assert "wrote to the worker's socket" in outcome.failure.message


async def test_a_flood_of_output_takes_no_memory_and_its_end_is_kept(
    runner: ChildRunner, make_call: MakeCall, limits: RunLimits, caplog: pytest.LogCaptureFixture
) -> None:
    before_bytes = peak_bytes()
    with caplog.at_level(logging.INFO, logger="worker.action"):
        report = await runner.run(make_call("flood", size=100_000_000))
    assert result_of(report) == "null"
    assert report.log.endswith("ythe end\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert peak_bytes() - before_bytes < 50_000_000
    (line,) = [record.getMessage() for record in caplog.records if record.name == "worker.action"]
    assert len(line) < 20_000


async def test_a_function_that_ignores_the_signal_is_killed_after_the_grace(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path, limits: RunLimits
) -> None:
    path = tmp_path / "pids"
    call = make_call("deaf", path=str(path))
    running = asyncio.create_task(runner.run(call))
    await until(lambda: has_text(path))
    asked_at = time.monotonic()
    call.stop.ask("cancel", "enough")
    assert isinstance((await running).outcome, Cancelled)
    assert limits.grace_seconds <= time.monotonic() - asked_at < limits.grace_seconds + 3
    await gone(pids_in(path, 1))


async def test_the_start_of_a_child_does_not_count_as_running_time(
    make_module: MakeModule, make_call: MakeCall, limits: RunLimits, guardian: Guardian
) -> None:
    module = make_module("import time\ntime.sleep(0.4)\n" + ACTIONS)
    runner = ChildRunner([module], size=1, limits=limits, guardian=guardian)
    try:
        assert result_of(await runner.run(make_call("add", a=1, b=1, timeout_seconds=0.4))) == "2"
    finally:
        await runner.close()


async def test_a_cancel_is_seen_inside_the_child(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    call = make_call("poll", path=str(path))
    running = asyncio.create_task(runner.run(call))
    await until(lambda: has_text(path))
    call.stop.ask("cancel", "no longer needed")
    report = await running
    assert isinstance(report.outcome, Cancelled)
    assert has_text(Path(f"{path}.stopped"))
    assert "ExecutionStopped: no longer needed" in report.log
    await gone(pids_in(path, 1))


async def test_a_signal_that_the_worker_did_not_send_stops_nothing(
    runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    # A service manager signals every process of a service: running work may end by itself then.
    path = tmp_path / "pids"
    running = asyncio.create_task(runner.run(make_call("until", path=str(path))))
    await until(lambda: has_text(path))
    os.kill(pids_in(path, 1)[0], signal.SIGTERM)
    let_go(path)
    assert result_of(await running) == '"whole"'


async def test_a_drain_interrupts(runner: ChildRunner, make_call: MakeCall, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    call = make_call("poll", path=str(path))
    running = asyncio.create_task(runner.run(call))
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


async def test_a_module_that_cannot_be_loaded_is_a_failure_that_says_why(
    make_module: MakeModule, make_call: MakeCall, limits: RunLimits, guardian: Guardian
) -> None:
    for source, words in (
        ("1 / 0", "division by zero"),
        ("import os; os._exit(4)", "exit code 4"),
        ("", "declares no action"),
    ):
        runner = ChildRunner([make_module(source)], size=1, limits=limits, guardian=guardian)
        assert words in failure_in(await runner.run(make_call("any"))).message


async def test_an_entrypoint_needs_no_decorator(
    runner: ChildRunner, make_call: MakeCall, module: str
) -> None:
    def call(entrypoint: str) -> Call:
        return replace(make_call("elsewhere", a=7), entrypoint=entrypoint)

    assert result_of(await runner.run(call(f"{module}:undecorated"))) == "14"
    # The same action under another entrypoint: the definition was changed meanwhile.
    assert result_of(await runner.run(call(f"{module}:also_undecorated"))) == "21"
    assert failure_in(await runner.run(call(f"{module}:nothing"))).type == "ActionsNotFound"
    assert failure_in(await runner.run(make_call("nowhere"))).type == "ActionsNotFound"


async def test_output_after_the_return_is_in_nobodys_log(runner: ChildRunner, make_call: MakeCall) -> None:
    await runner.run(make_call("late"))
    await asyncio.sleep(0.2)
    assert (await runner.run(make_call("pid"))).log == ""


async def test_a_child_inherits_no_pythonpath_of_ours(
    runner: ChildRunner, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert result_of(await runner.run(make_call("environment"))) == "null"


WORKER = """
import asyncio, sys
from common.domain.identifiers import Attempt, ExecutionId
from worker.runners import Call, RunLimits, StopRequest
from worker.runners.assembly import Runners

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
    repository = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{tmp_path}"}
    process = subprocess.Popen([sys.executable, str(script), module, str(path)], env=environment)
    try:
        asyncio.run(until(lambda: len(pids_in(path, 5)) == 5))
    finally:
        process.kill()
        process.wait()
    asyncio.run(gone(pids_in(path, 5)))
