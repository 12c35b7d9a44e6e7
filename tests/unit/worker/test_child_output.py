"""What plain functions in child processes print and log: all of it, or its end, and in no other run's log."""

import asyncio
import logging

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import peak_bytes, result_of
from turnstile.worker.runners import RunLimits
from turnstile.worker.runners.child_pool import ChildRunner

ACTIONS = """
import logging, os, subprocess, sys, threading
from turnstile.worker import Context, action

@action("pid")
def pid() -> int:
    return os.getpid()

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

@action("late")
def late():
    threading.Timer(0.05, lambda: print("too late")).start()
"""


async def test_all_that_is_printed_and_logged_is_in_the_log_of_that_run(
    child_runner: ChildRunner, make_call: MakeCall, caplog: pytest.LogCaptureFixture
) -> None:
    call = make_call("print", text="hello")
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        report = await child_runner.run(call)
    lines = report.log.splitlines()
    assert lines[:2] == ["hello", "to stderr"]
    assert lines[2].endswith(f"WARNING logged {call.execution_id}")
    assert lines[3].endswith("INFO library: from a library")
    assert lines[4] == "from a command"
    (record,) = [record for record in caplog.records if record.name == "turnstile.action"]
    assert record.__dict__["execution_id"] == call.execution_id
    assert (await child_runner.run(make_call("pid"))).log == ""


async def test_a_flood_of_output_takes_no_memory_and_its_end_is_kept(
    child_runner: ChildRunner, make_call: MakeCall, limits: RunLimits, caplog: pytest.LogCaptureFixture
) -> None:
    before_bytes = peak_bytes()
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        report = await child_runner.run(make_call("flood", size=100_000_000))
    assert result_of(report) == "null"
    assert report.log.endswith("ythe end\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert peak_bytes() - before_bytes < 50_000_000
    (line,) = [record.getMessage() for record in caplog.records if record.name == "turnstile.action"]
    assert len(line) < 20_000


async def test_output_after_the_return_is_in_nobodys_log(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    await child_runner.run(make_call("late"))
    await asyncio.sleep(0.2)
    assert (await child_runner.run(make_call("pid"))).log == ""
