"""The children themselves: they are used again, as many as there are places, and replaced when they die."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.unit.worker.children import pid_of
from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import failed_in, failure_in, gone, has_text, pids_in, result_of, until
from turnstile.worker.runners import RunLimits
from turnstile.worker.runners.child_pool import ChildRunner
from turnstile.worker.runners.guardian import Guardian

ACTIONS = """
import os, signal, struct, sys, time
from turnstile.worker import Context, PermanentError, action

@action("pid")
def pid() -> int:
    return os.getpid()

@action("add")
def add(a: int, b: int) -> int:
    return a + b

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
    os.closerange(3, 65536)
    time.sleep(1000)

@action("babble")
def babble(length: int):
    # The socket to the worker is the first descriptor after the usual three that is a socket.
    fd = next(fd for fd in range(3, 65536) if os.path.exists(f"/proc/self/fd/{fd}")
              and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"))
    os.write(fd, struct.pack("!I", length) + b"x" * 1000)
    time.sleep(1000)

@action("until")
def until(context: Context, path: str):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists(path + ".go"):
        context.check_cancelled()
        time.sleep(0.01)
    return "whole"

@action("environment")
def environment():
    return os.environ.get("PYTHONPATH")

@action("settings")
def settings():
    with open("/proc/self/environ", "rb") as file:
        at_exec = [entry.decode() for entry in file.read().split(b"\\0")]
    now = [f"{name}={value}" for name, value in os.environ.items()]
    return sorted({entry for entry in at_exec + now if "secret" in entry or "TURNSTILE_API_URL" in entry})
"""


def let_go(path: Path) -> None:
    Path(f"{path}.go").touch()


async def test_a_child_is_used_again_and_ends_with_the_runner(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    pid = await pid_of(child_runner, make_call)
    failed_in(await child_runner.run(make_call("raise")))
    assert await pid_of(child_runner, make_call) == pid
    assert pid != os.getpid()
    await child_runner.close()
    await gone([pid])


async def test_two_calls_at_once_run_in_two_children_and_a_third_waits(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    running = [asyncio.create_task(child_runner.run(make_call("until", path=str(path)))) for _ in range(3)]
    await until(lambda: len(pids_in(path, 2)) == 2)
    assert len(set(pids_in(path, 2))) == 2
    let_go(path)
    assert [result_of(await each) for each in running] == ['"whole"'] * 3
    assert len(set(pids_in(path, 3))) == 2


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("os", 3, "exit code 3"), ("signal", signal.SIGSEGV, "SIGSEGV"), ("signal", signal.SIGKILL, "SIGKILL")],
)
async def test_a_child_that_dies_is_a_failure_that_may_be_retried_and_is_replaced(
    child_runner: ChildRunner, make_call: MakeCall, how: str, code: int, words: str
) -> None:
    pid = await pid_of(child_runner, make_call)
    report = await child_runner.run(make_call("exit", how=how, code=int(code)))
    outcome = failed_in(report)
    assert outcome.failure.type == "ProcessDied"
    assert words in outcome.failure.message
    assert (words == "SIGKILL") == ("memory ran out" in outcome.failure.message)
    assert outcome.retryable
    assert report.log == "last words\n"
    assert await pid_of(child_runner, make_call) != pid


async def test_sys_exit_is_a_failure_and_the_child_lives(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    pid = await pid_of(child_runner, make_call)
    assert failure_in(await child_runner.run(make_call("exit", how="sys", code=3))).type == "SystemExit"
    assert await pid_of(child_runner, make_call) == pid


async def test_a_child_killed_while_idle_is_replaced_unseen(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    pid = await pid_of(child_runner, make_call)
    os.kill(pid, signal.SIGKILL)
    await gone([pid])
    await asyncio.sleep(0)
    assert await pid_of(child_runner, make_call) != pid


async def test_a_child_that_cuts_its_line_is_killed(child_runner: ChildRunner, make_call: MakeCall) -> None:
    async with asyncio.timeout(10):
        outcome = failed_in(await child_runner.run(make_call("close")))
    assert outcome.failure.type == "ProcessDied"
    assert "closed its connection" in outcome.failure.message


@pytest.mark.parametrize("length", [1000, 4_000_000_000])
async def test_a_child_that_sends_what_is_no_message_is_killed_and_its_words_are_not_kept(
    child_runner: ChildRunner, make_call: MakeCall, length: int
) -> None:
    async with asyncio.timeout(10):
        outcome = failed_in(await child_runner.run(make_call("babble", length=length)))
    assert outcome.failure.type == "ProcessDied"
    assert "wrote to the worker's socket" in outcome.failure.message


async def test_the_start_of_a_child_does_not_count_as_running_time(
    make_module: MakeModule, make_call: MakeCall, limits: RunLimits, guardian: Guardian
) -> None:
    module = make_module("import time\ntime.sleep(0.4)\n" + ACTIONS)
    runner = ChildRunner([module], size=1, limits=limits, guardian=guardian)
    try:
        assert result_of(await runner.run(make_call("add", a=1, b=1, timeout_seconds=0.4))) == "2"
    finally:
        await runner.close()


async def test_a_signal_that_the_worker_did_not_send_stops_nothing(
    child_runner: ChildRunner, make_call: MakeCall, tmp_path: Path
) -> None:
    # A service manager signals every process of a service: running work may end by itself then.
    path = tmp_path / "pids"
    running = asyncio.create_task(child_runner.run(make_call("until", path=str(path))))
    await until(lambda: has_text(path))
    os.kill(pids_in(path, 1)[0], signal.SIGTERM)
    let_go(path)
    assert result_of(await running) == '"whole"'


async def test_a_child_inherits_no_pythonpath_of_ours(
    child_runner: ChildRunner, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert result_of(await child_runner.run(make_call("environment"))) == "null"


async def test_a_child_sees_no_setting_of_the_worker_neither_now_nor_as_it_was_started(
    child_runner: ChildRunner, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "AMQP_URL", "API_TOKEN", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"TURNSTILE_{name}", "secret")
    monkeypatch.setenv("OF_THE_USER", "no secret of ours")
    assert result_of(await child_runner.run(make_call("settings"))) == '["OF_THE_USER=no secret of ours"]'


async def test_a_child_sees_the_settings_that_are_to_be_passed(
    module: str, guardian: Guardian, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_API_URL", "http://api.example")
    monkeypatch.setenv("TURNSTILE_API_TOKEN", "secret")
    passed = RunLimits(variables_passed=frozenset({"TURNSTILE_API_URL"}))
    runner = ChildRunner([module], size=1, limits=passed, guardian=guardian)
    try:
        report = await runner.run(make_call("settings"))
    finally:
        await runner.close()
    assert result_of(report) == '["TURNSTILE_API_URL=http://api.example"]'
