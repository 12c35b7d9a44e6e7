"""Async functions: outcomes, stops, logs."""

import asyncio
import json
import logging
from collections.abc import Callable

import pytest

from common.domain.outcomes import Cancelled, TimedOut
from tests.worker.conftest import MakeCall, MakeModule
from tests.worker.waiting import failed_in, result_of, until
from worker.actions import load_actions
from worker.runners import Interrupted, RunLimits
from worker.runners.in_loop import InLoopRunner

ACTIONS = """
import asyncio, sys
from worker import Context, ExecutionStopped, PermanentError, TemporaryError, action

seen = []

@action("add")
async def add(a: int, b: int) -> int:
    return a + b

@action("identity")
async def identity(context: Context) -> dict:
    return {"id": context.execution_id, "attempt": context.attempt, "ref": context.action_ref,
            "trace": context.traceparent}

@action("raise")
async def raise_(kind: str, message: str = "", delay: float | None = None):
    match kind:
        case "permanent":
            raise PermanentError(message)
        case "temporary":
            raise TemporaryError(message, delay=delay)
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "stopped":
            raise ExecutionStopped("by myself")
        case "group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(raise_("permanent", message))
        case "unprintable":
            raise Unprintable
        case _:
            raise ValueError(message)

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

@action("return")
async def return_(what: str):
    loop = []
    loop.append(loop)
    return {"nan": float("nan"), "deep": {"x": [float("inf")]}, "nul": "a\\0b", "object": object(),
            "large": "x" * 200_000, "word": "NaN and Infinity", "escaped": "\\\\u0000",
            "surrogate": "\\ud800",
            "circle": loop, "none": None, "set": {1}}[what]

@action("wait")
async def wait():
    seen.append("started")
    await asyncio.Event().wait()

@action("wait.politely")
async def wait_politely(context: Context):
    try:
        await asyncio.Event().wait()
    finally:
        seen.append(context.cancelled)
        context.check_cancelled()

@action("wait.then.return")
async def wait_then_return():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "half of it"

@action("ignore")
async def ignore(release: str = ""):
    seen.append("started")
    while "release" not in seen:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    seen.append("released")

@action("log")
async def log(context: Context):
    context.logger.info("one %s", 1)
    context.logger.debug("too fine")
    try:
        1 / 0
    except ZeroDivisionError:
        context.logger.exception("two\\0")
"""


@pytest.fixture
def module(make_module: MakeModule) -> str:
    return make_module(ACTIONS)


@pytest.fixture
def seen(module: str, runner: InLoopRunner) -> list[object]:
    """What the actions noted."""
    import sys

    noted: list[object] = sys.modules[module].seen
    return noted


@pytest.fixture
def make_runner(module: str) -> Callable[[RunLimits], InLoopRunner]:
    actions = {found.definition.ref: found for found in load_actions(module)}
    return lambda limits: InLoopRunner(actions, limits)


@pytest.fixture
def runner(make_runner: Callable[[RunLimits], InLoopRunner], limits: RunLimits) -> InLoopRunner:
    return make_runner(limits)


async def test_the_return_value_is_the_result(runner: InLoopRunner, make_call: MakeCall) -> None:
    assert result_of(await runner.run(make_call("add", a=2, b=3))) == "5"


async def test_the_context_says_who_it_is(runner: InLoopRunner, make_call: MakeCall) -> None:
    call = make_call("identity")
    said = json.loads(result_of(await runner.run(call)))
    assert said == {
        "id": call.execution_id,
        "attempt": 1,
        "ref": "identity",
        "trace": call.traceparent,
    }


async def test_wrong_parameters_fail_for_good_and_each_is_named(
    runner: InLoopRunner, make_call: MakeCall
) -> None:
    report = await runner.run(make_call("add", a="many", c=1))
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.retryable) == ("InvalidParameters", False)
    assert "a: Input should be a valid integer" in outcome.failure.message
    assert "b: required, but not given" in outcome.failure.message
    assert "c: no such parameter; known are: a, b" in outcome.failure.message
    assert report.log == ""


async def test_an_exception_is_a_failure_with_its_traceback_in_the_log(
    runner: InLoopRunner, make_call: MakeCall
) -> None:
    report = await runner.run(make_call("raise", kind="value", message="no\0 such thing"))
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", "no\ufffd such thing")
    assert (outcome.retryable, outcome.delay_seconds) == (True, None)
    assert "in raise_" in report.log
    assert "judge" not in report.log  # none of our own frames


async def test_a_long_message_is_cut(runner: InLoopRunner, make_call: MakeCall) -> None:
    outcome = failed_in(await runner.run(make_call("raise", kind="value", message="x" * 50_000)))
    assert len(outcome.failure.message) <= 4096


@pytest.mark.parametrize(
    ("kind", "type_name"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("stopped", "ExecutionStopped"),
        ("unprintable", "Unprintable"),
    ],
)
async def test_whatever_is_raised_unasked_is_a_failure(
    runner: InLoopRunner, make_call: MakeCall, kind: str, type_name: str
) -> None:
    outcome = failed_in(await runner.run(make_call("raise", kind=kind)))
    assert outcome.failure.type == type_name
    assert outcome.failure.message
    assert outcome.retryable


async def test_a_permanent_error_is_not_retried(runner: InLoopRunner, make_call: MakeCall) -> None:
    for kind in ("permanent", "group"):
        outcome = failed_in(await runner.run(make_call("raise", kind=kind, message="never")))
        assert (outcome.failure.type, outcome.failure.message) == ("PermanentError", "never")
        assert not outcome.retryable


@pytest.mark.parametrize(("delay", "seconds"), [(2.5, 2.5), (None, None), (-1.0, None), (1e300, None)])
async def test_a_temporary_error_may_ask_for_its_delay(
    runner: InLoopRunner, make_call: MakeCall, delay: float | None, seconds: float | None
) -> None:
    outcome = failed_in(await runner.run(make_call("raise", kind="temporary", delay=delay)))
    assert (outcome.retryable, outcome.delay_seconds) == (True, seconds)


@pytest.mark.parametrize("what", ["nan", "deep", "nul", "object", "surrogate", "circle"])
async def test_a_result_that_cannot_be_stored_as_json_fails_for_good(
    runner: InLoopRunner, make_call: MakeCall, what: str
) -> None:
    outcome = failed_in(await runner.run(make_call("return", what=what)))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("word", '"NaN and Infinity"'),
        ("escaped", '"\\\\u0000"'),
        ("none", "null"),
        ("set", "[1]"),
    ],
)
async def test_a_result_that_only_looks_wrong_is_kept(
    runner: InLoopRunner, make_call: MakeCall, what: str, result: str
) -> None:
    assert result_of(await runner.run(make_call("return", what=what))) == result


async def test_a_result_above_the_bound_fails_for_good_with_both_numbers(
    runner: InLoopRunner, make_call: MakeCall
) -> None:
    outcome = failed_in(await runner.run(make_call("return", what="large")))
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)
    assert "200002" in outcome.failure.message
    assert "100000" in outcome.failure.message


async def test_a_timeout_cancels(runner: InLoopRunner, make_call: MakeCall, seen: list[object]) -> None:
    report = await runner.run(make_call("wait.politely", timeout_seconds=0.05))
    assert isinstance(report.outcome, TimedOut)
    assert "50ms" in report.outcome.failure.message
    assert seen == [True]


@pytest.mark.parametrize("ref", ["wait", "wait.politely", "wait.then.return"])
async def test_once_asked_to_stop_the_stop_is_the_answer(
    runner: InLoopRunner, make_call: MakeCall, ref: str
) -> None:
    call = make_call(ref)
    call.stop.ask("cancel", "no longer needed")
    report = await runner.run(call)
    assert isinstance(report.outcome, Cancelled)
    assert report.outcome.failure.message == "no longer needed"
    call = make_call(ref)
    call.stop.ask("drain", "leaving")
    assert (await runner.run(call)).outcome == Interrupted(kind="drain", reason="leaving")


async def test_a_coroutine_that_ignores_cancellation_is_left_behind_counted_and_warned_of(
    make_runner: Callable[[RunLimits], InLoopRunner],
    make_call: MakeCall,
    seen: list[object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = make_runner(RunLimits(grace_seconds=0.05))
    report = await runner.run(make_call("ignore", timeout_seconds=0.05))
    assert isinstance(report.outcome, TimedOut)
    assert "run_left_behind" in caplog.text
    assert len(runner.left_behind) == 1
    seen.append("release")
    await until(lambda: "released" in seen)
    await until(lambda: not runner.left_behind)


async def test_a_cancelled_runner_cancels_the_action(
    runner: InLoopRunner, make_call: MakeCall, seen: list[object]
) -> None:
    running = asyncio.create_task(runner.run(make_call("wait.politely")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: len(seen) == 1)


async def test_log_lines_are_kept_with_the_attempt_and_go_to_the_workers_log(
    runner: InLoopRunner, make_call: MakeCall, caplog: pytest.LogCaptureFixture
) -> None:
    call = make_call("log")
    with caplog.at_level(logging.INFO, logger="worker.action"):
        report = await runner.run(call)
    first, second, *traceback = report.log.splitlines()
    assert first.endswith("Z INFO one 1")
    assert second.endswith("Z ERROR two\ufffd")
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    records = [record for record in caplog.records if record.name == "worker.action"]
    assert [record.getMessage() for record in records] == ["one 1", "two\ufffd"]
    assert records[0].__dict__["execution_id"] == call.execution_id
    assert records[0].__dict__["action_ref"] == "log"
