"""Plain functions in child processes: calls, the processes' lives, their output, and how they are stopped."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.traffic import until
from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import (
    Calls,
    failed_in,
    failure_in,
    gone,
    has_text,
    peak_bytes,
    pids_in,
    result_of,
    stopped_in,
)
from turnstile.worker.core.outcomes import Cancelled, TimedOut
from turnstile.worker.runners.base import Call, Interrupted, RequestKind, RunLimits
from turnstile.worker.runners.child import ChildRunner
from turnstile.worker.runners.child_protocol import Setup, StopRequested, to_child
from turnstile.worker.runners.supervisor import Supervisor

ACTIONS = """
import logging, os, signal, struct, subprocess, sys, threading, time
from turnstile.worker import Context, PermanentError, action

def note(path, *pids):
    with open(path, "a") as file:
        file.write("".join(f"{pid}\\n" for pid in pids))

@action("pid")
def pid() -> int:
    return os.getpid()

@action("add")
def add(a: int, b: int) -> int:
    return a + b

@action("raise")
def raise_():
    raise PermanentError("never")

async def undecorated(a: int) -> int:
    return a * 2

def also_undecorated(a: int) -> int:
    return a * 3

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
    os.closerange(3, 65536)
    time.sleep(1000)

@action("garbage")
def garbage(length: int):
    # The socket to the worker is the first descriptor after the usual three that is a socket.
    fd = next(fd for fd in range(3, 65536) if os.path.exists(f"/proc/self/fd/{fd}")
              and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"))
    os.write(fd, struct.pack("!I", length) + b"x" * 1000)
    time.sleep(1000)

@action("until")
def until(context: Context, path: str):
    note(path, os.getpid())
    while not os.path.exists(path + ".go"):
        context.check_cancelled()
        time.sleep(0.01)
    return "whole"

@action("environment")
def environment():
    with open("/proc/self/environ", "rb") as file:
        at_exec = [entry.decode() for entry in file.read().split(b"\\0")]
    now = [f"{name}={value}" for name, value in os.environ.items()]
    seen = {entry for entry in at_exec + now if "secret" in entry or "TURNSTILE_API_URL" in entry}
    return [os.environ.get("PYTHONPATH"), *sorted(seen)]

@action("print")
def print_(context: Context, text: str):
    print(text)
    print("to stderr", file=sys.stderr)
    context.logger.warning("logged %s", context.execution_id)
    logging.getLogger("library").info("from a library")
    subprocess.run(["echo", "from a command"])

@action("flood")
def flood(context: Context, size: int):
    context.logger.info("long " + "x" * 200_000)
    for _ in range(size // 1_000_000):
        sys.stdout.write("y" * 1_000_000)
    print("the end")
    return "x" * 99_000

@action("grow")
def grow(size_bytes: int) -> list[int]:
    global kept
    kept = b"x" * size_bytes
    pages = int(open("/proc/self/statm").read().split()[1])
    return [os.getpid(), pages * os.sysconf("SC_PAGE_SIZE")]

@action("late")
def late():
    threading.Timer(0.05, lambda: print("too late")).start()

@action("sleep")
def sleep(path: str):
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! >>$0; wait", path])
    note(path, os.getpid(), child.pid)
    child.wait()
    time.sleep(1000)
"""


StartRunner = Callable[..., ChildRunner]


@pytest.fixture
async def calls(module: str, start_runner: StartRunner, make_call: MakeCall) -> Calls:
    return Calls(start_runner(module, size=2), make_call)


@pytest.fixture
async def start_runner(limits: RunLimits, supervisor: Supervisor) -> AsyncIterator[StartRunner]:
    """Start a runner of a module; it is closed at the end."""
    started: list[ChildRunner] = []

    def start(module: str, *, size: int = 1, limits: RunLimits = limits) -> ChildRunner:
        started.append(ChildRunner([module], size=size, limits=limits, supervisor=supervisor))
        return started[-1]

    yield start
    for runner in started:
        await runner.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file to which the actions write the pids of their processes."""
    return tmp_path / "pids"


def release(path: Path) -> None:
    Path(f"{path}.go").touch()


async def pid_of(calls: Calls) -> int:
    return int(result_of(await calls.run("pid")))


async def test_a_module_that_cannot_be_loaded_returns_the_attempt_with_the_reason(
    calls: Calls, make_module: MakeModule, start_runner: StartRunner
) -> None:
    for source, reason in (
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(4)", "ProcessDied: the process ended with exit code 4"),
        ("", "ActionsNotFound: "),
    ):
        stopped = stopped_in(await calls.on(start_runner(make_module(source))).run("any"))
        assert isinstance(stopped, Interrupted)
        assert (stopped.kind, reason in stopped.reason) == ("not_started", True)


NEEDS_A_MODEL = """
from pathlib import Path
from turnstile.worker import action, on_start

@on_start
def load_model(state):
    with open("starts", "a") as file:
        file.write("start\\n")
    state.model = Path("model").read_text()

@action("pid")
def pid() -> int:
    import os
    return os.getpid()
"""


async def test_a_start_that_fails_is_repeated_once_per_try_and_not_per_attempt(
    calls: Calls, make_module: MakeModule, start_runner: StartRunner, tmp_path: Path
) -> None:
    runner = start_runner(make_module(NEEDS_A_MODEL))
    calls = calls.on(runner)
    for _ in range(3):
        assert isinstance(stopped_in(await calls.run("pid")), Interrupted)
    assert (runner.failing.is_set(), runner.startable.is_set()) == (True, False)
    assert (tmp_path / "starts").read_text() == "start\n"
    failure = await runner.try_start()
    assert failure is not None
    assert failure.failure.type == "FileNotFoundError"
    assert (failure.location or "").endswith(" in load_model")
    (tmp_path / "model").touch()
    assert await runner.try_start() is None
    assert (runner.failing.is_set(), runner.startable.is_set()) == (False, True)
    await pid_of(calls)
    assert (tmp_path / "starts").read_text() == "start\n" * 3


async def test_an_entrypoint_needs_no_decorator(calls: Calls, module: str) -> None:
    def call(entrypoint: str) -> Call:
        return replace(calls.make("elsewhere", a=7), entrypoint=entrypoint)

    assert result_of(await calls.runner.run(call(f"{module}:undecorated"))) == "14"
    # The same action with another entrypoint: its definition was changed meanwhile.
    assert result_of(await calls.runner.run(call(f"{module}:also_undecorated"))) == "21"
    assert failure_in(await calls.runner.run(call(f"{module}:nothing"))).type == "ActionsNotFound"
    assert failure_in(await calls.run("nowhere")).type == "ActionsNotFound"


async def test_a_child_is_reused_after_failures_and_ends_with_the_runner(
    calls: Calls, module: str, start_runner: StartRunner
) -> None:
    runner = start_runner(module)
    calls = calls.on(runner)
    pid = await pid_of(calls)
    failed_in(await calls.run("raise"))
    assert failure_in(await calls.run("exit", how="sys", code=3)).type == "SystemExit"
    assert await pid_of(calls) == pid
    assert pid != os.getpid()
    await runner.close()
    await gone([pid])


async def test_two_concurrent_calls_run_in_two_children_and_a_third_waits(calls: Calls, path: Path) -> None:
    running = [asyncio.create_task(calls.run("until", path=str(path))) for _ in range(3)]
    await until(lambda: len(pids_in(path, 2)) == 2)
    assert len(set(pids_in(path, 2))) == 2
    release(path)
    assert [result_of(await each) for each in running] == ['"whole"'] * 3
    assert len(set(pids_in(path, 3))) == 2


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [("os", 3, "exit code 3"), ("signal", signal.SIGKILL, "SIGKILL")],
)
async def test_a_child_that_dies_is_a_retryable_failure_and_is_replaced(
    calls: Calls, how: str, code: int, reason: str
) -> None:
    pid = await pid_of(calls)
    report = await calls.run("exit", how=how, code=int(code))
    outcome = failed_in(report)
    assert outcome.failure.type == "ProcessDied"
    assert reason in outcome.failure.message
    assert (reason == "SIGKILL") == ("memory ran out" in outcome.failure.message)
    assert outcome.retryable
    assert report.log == "last words\n"
    assert await pid_of(calls) != pid


async def test_a_child_that_has_grown_above_the_limit_is_replaced_after_its_run(
    calls: Calls, module: str, start_runner: StartRunner
) -> None:
    _, size_bytes = json.loads(result_of(await calls.run("grow", size_bytes=0)))
    limits = RunLimits(child_memory_bytes_max=size_bytes + 30_000_000)
    calls = calls.on(start_runner(module, limits=limits))
    first, second, third = [
        json.loads(result_of(await calls.run("grow", size_bytes=grown)))[0] for grown in (0, 60_000_000, 0)
    ]
    assert first == second != third
    await gone([first])


@pytest.mark.parametrize(
    ("ref", "parameters", "reason"),
    [
        ("close", {}, "closed its connection"),
        ("garbage", {"length": 1000}, "wrote to the worker's socket"),
        ("garbage", {"length": 4_000_000_000}, "wrote to the worker's socket"),
    ],
)
async def test_a_child_that_breaks_its_connection_is_killed(
    calls: Calls, ref: str, parameters: dict[str, int], reason: str
) -> None:
    async with asyncio.timeout(10):
        outcome = failed_in(await calls.run(ref, **parameters))
    assert outcome.failure.type == "ProcessDied"
    assert reason in outcome.failure.message


async def test_the_start_of_a_child_does_not_count_towards_the_timeout(
    calls: Calls, make_module: MakeModule, start_runner: StartRunner
) -> None:
    module = make_module("import time\ntime.sleep(0.4)\n" + ACTIONS)
    report = await calls.on(start_runner(module)).run("add", a=1, b=1, timeout_seconds=0.4)
    assert result_of(report) == "2"


async def test_a_child_sees_only_the_settings_that_are_passed_and_no_pythonpath_of_the_worker(
    calls: Calls, module: str, start_runner: StartRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("DATABASE_URL", "AMQP_URL", "API_TOKEN", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"TURNSTILE_{name}", "secret")
    monkeypatch.setenv("OF_THE_USER", "no secret of the worker")
    monkeypatch.setenv("TURNSTILE_API_URL", "http://api.example")
    limits = RunLimits(variables_passed=frozenset({"TURNSTILE_API_URL"}))
    report = await calls.on(start_runner(module, limits=limits)).run("environment")
    expected = [None, "OF_THE_USER=no secret of the worker", "TURNSTILE_API_URL=http://api.example"]
    assert json.loads(result_of(report)) == expected


async def test_everything_printed_and_logged_is_in_the_log_of_that_run_only(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        call, running = calls.start("print", text="hello")
        report = await running
    lines = report.log.splitlines()
    assert lines[:2] == ["hello", "to stderr"]
    assert lines[2].endswith(f"WARNING logged {call.execution_id}")
    assert lines[3].endswith("INFO library: from a library")
    assert lines[4] == "from a command"
    (record,) = [record for record in caplog.records if record.name == "turnstile.action"]
    assert record.__dict__["execution_id"] == call.execution_id
    assert (await calls.run("pid")).log == ""


async def test_a_large_result_passes_and_of_a_flood_of_output_the_end_is_kept(
    calls: Calls, limits: RunLimits, caplog: pytest.LogCaptureFixture
) -> None:
    before_bytes = peak_bytes()
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        report = await calls.run("flood", size=100_000_000)
    assert json.loads(result_of(report)) == "x" * 99_000
    assert report.log.endswith("ythe end\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert peak_bytes() - before_bytes < 50_000_000
    (line,) = [record.getMessage() for record in caplog.records if record.name == "turnstile.action"]
    assert len(line) < 20_000


async def test_a_timeout_ends_a_blocking_function_and_its_commands(calls: Calls, path: Path) -> None:
    report = await calls.run("sleep", path=str(path), timeout_seconds=1.5)
    assert isinstance(report.outcome, TimedOut)
    pids = pids_in(path, 3)
    await gone(pids)
    assert await pid_of(calls) not in pids


@pytest.mark.parametrize(("kind", "outcome"), [("cancel", Cancelled), ("drain", Interrupted)])
async def test_a_function_sees_that_it_is_stopped(
    calls: Calls, path: Path, kind: RequestKind, outcome: type
) -> None:
    call, running = calls.start("until", path=str(path))
    await until(lambda: has_text(path))
    call.stop.request(kind, "no longer needed")
    report = await running
    assert isinstance(stopped_in(report), outcome)
    assert report.log.endswith("ExecutionStopped: no longer needed\n")
    assert report.log.count("Traceback") == 1
    await gone(pids_in(path, 1))


def test_a_stop_request_that_arrives_after_the_end_of_the_action_leaves_no_traceback(module: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        descriptor = theirs.fileno()
        argv = [sys.executable, "-m", "turnstile.worker.runners.child_main", str(descriptor), module]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen(argv, pass_fds=[descriptor], stderr=subprocess.PIPE, env=environment)
        setup = Setup(parent_pid=os.getpid(), pythonpath=None, log_level=20, result_bytes_max=1000)
        ours.sendall(to_child(setup) + to_child(StopRequested(reason="no longer needed")))
        _, errors = child.communicate(timeout=20)
    assert (child.returncode, errors.decode()) == (0, "")


async def test_a_cancel_stops_a_child_that_still_starts(
    calls: Calls, make_module: MakeModule, start_runner: StartRunner, path: Path
) -> None:
    start = f"import os, time\nopen({str(path)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)\n"
    call, running = calls.on(start_runner(make_module(start))).start("any")
    await until(lambda: has_text(path))
    call.stop.request("cancel", "no")
    assert isinstance((await running).outcome, Cancelled)
    await gone(pids_in(path, 1))
