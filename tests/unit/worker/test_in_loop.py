"""Async functions: calls, results, errors, and how they are stopped."""

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.traffic import until
from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import Calls, failed_in, failure_in, result_of
from turnstile.testing.running import LoopRunner
from turnstile.worker.actions import load_actions
from turnstile.worker.core.outcomes import Cancelled, TimedOut
from turnstile.worker.runners.base import Interrupted, RunLimits
from turnstile.worker.runners.in_loop import InLoopRunner

ACTIONS = """
import asyncio, sys
from turnstile.worker import Context, ExecutionStopped, PermanentError, TemporaryError, action

seen = []

@action("add")
async def add(a: int, b: int) -> int:
    return a + b

@action("identity")
async def identity(context: Context) -> dict:
    return {"id": context.execution_id, "attempt": context.attempt, "ref": context.action_ref,
            "trace": context.traceparent}

@action("log")
async def log(context: Context):
    context.logger.info("one %s", 1)
    context.logger.debug("too fine")
    try:
        1 / 0
    except ZeroDivisionError:
        context.logger.exception("two\\0")

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

@action("wait")
async def wait(context: Context):
    try:
        await asyncio.Event().wait()
    finally:
        seen.append(context.cancelled)
        context.check_cancelled()

@action("exit.in.a.task")
async def exit_in_a_task(way: str):
    async def exits():
        await asyncio.sleep(0)
        sys.exit(3)

    match way:
        case "awaited":
            await asyncio.create_task(exits())
        case "group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(exits())
        case "gathered":
            await asyncio.gather(exits(), asyncio.Event().wait())
        case "cancelled":
            async def exits_late():
                try:
                    await asyncio.Event().wait()
                finally:
                    sys.exit(3)
            task = asyncio.create_task(exits_late())
            await asyncio.sleep(0)
            task.cancel()
            await task

@action("task.cancelled.at.once")
async def task_cancelled_at_once() -> bool:
    async def never():
        pass

    task = asyncio.create_task(never(), name="mine")
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled() and task.get_name() == "mine" and task.get_coro().__name__ == "never"

@action("cancel.own.task")
async def cancel_own_task(wait: bool) -> int:
    asyncio.current_task().cancel()
    if wait:
        await asyncio.sleep(0)
    return 1

@action("wait.then.return")
async def wait_then_return():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "half of it"

@action("end.late")
async def end_late(after_seconds: float):
    ends_at = asyncio.get_running_loop().time() + after_seconds
    while (left := ends_at - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            pass

@action("count.cancels")
async def count_cancels():
    seen.append("begun")
    while "release" not in seen:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            seen.append("cancelled")

@action("ignore")
async def ignore():
    while "release" not in seen:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    seen.append("released")
"""

MakeRunner = Callable[[RunLimits], LoopRunner]


@pytest.fixture
def make_runner(module: str) -> MakeRunner:
    """Make the runner in what keeps timeouts and grace periods, as the worker's core does."""
    actions = {found.definition.ref: found for found in load_actions(module)}
    return lambda limits: LoopRunner(InLoopRunner(actions, limits), limits)


@pytest.fixture
def calls(make_runner: MakeRunner, limits: RunLimits, make_call: MakeCall) -> Calls:
    return Calls(make_runner(limits), make_call)


@pytest.fixture
def seen(module: str, calls: Calls) -> Iterator[list[object]]:
    """The list to which the actions write."""
    noted: list[object] = sys.modules[module].seen
    yield noted
    # What ignores its cancellation would stop the event loop from closing.
    noted.append("release")


@pytest.fixture
async def owned(module: str, limits: RunLimits, make_call: MakeCall) -> AsyncIterator[Calls]:
    """Calls as in a worker, which owns the tasks that actions start."""
    runner = InLoopRunner({found.definition.ref: found for found in load_actions(module)}, limits)
    with runner.owning_tasks():
        yield Calls(LoopRunner(runner, limits), make_call)


@pytest.mark.parametrize("way", ["awaited", "group", "gathered", "cancelled"])
async def test_what_ends_a_process_ends_only_the_task_that_an_action_started(owned: Calls, way: str) -> None:
    _, running = owned.start("exit.in.a.task", way=way)
    failure = failure_in(await running)
    # A group with one exception has the outcome of that one.
    assert (failure.type, failure.message) == (
        "TaskExited",
        "a task of the action ended with SystemExit(3)",
    )
    # The loop goes on.
    _, other = owned.start("add", a=1, b=2)
    assert result_of(await other) == "3"


async def test_a_task_of_an_action_that_is_cancelled_before_its_first_step_is_closed(owned: Calls) -> None:
    _, running = owned.start("task.cancelled.at.once")
    assert result_of(await running) == "true"


async def test_the_context_identifies_the_attempt(calls: Calls) -> None:
    call, running = calls.start("identity")
    identity = {"id": call.execution_id, "attempt": 1, "ref": "identity", "trace": call.traceparent}
    assert json.loads(result_of(await running)) == identity


async def test_invalid_parameters_are_all_named_and_not_retried(calls: Calls) -> None:
    report = await calls.run("add", a="many", c=1)
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.retryable) == ("InvalidParameters", False)
    assert "a: expected a whole number" in outcome.failure.message
    assert "b: required, but missing" in outcome.failure.message
    assert "c: unknown parameter; known: a, b" in outcome.failure.message
    assert report.log == ""


async def test_log_lines_are_stored_with_the_attempt_and_go_to_the_workers_log(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        call, running = calls.start("log")
        report = await running
    first, second, *traceback = report.log.splitlines()
    assert first.endswith("Z INFO one 1")
    assert second.endswith("Z ERROR two\ufffd")
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    records = [record for record in caplog.records if record.name == "turnstile.action"]
    assert [record.getMessage() for record in records] == ["one 1", "two\ufffd"]
    assert records[0].__dict__["execution_id"] == call.execution_id
    assert records[0].__dict__["action_ref"] == "log"


async def test_an_exception_is_a_failure_with_its_traceback_in_the_log(calls: Calls) -> None:
    report = await calls.run("raise", kind="value", message="no\0 such thing")
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", "no\ufffd such thing")
    assert (outcome.retryable, outcome.delay_seconds) == (True, None)
    assert "in raise_" in report.log
    assert "catcher" not in report.log  # no frames of the worker
    outcome = failed_in(await calls.run("raise", kind="value", message="x" * 50_000))
    assert len(outcome.failure.message) <= 4096


@pytest.mark.parametrize("kind", ["permanent", "group"])
async def test_a_permanent_error_is_not_retried(calls: Calls, kind: str) -> None:
    outcome = failed_in(await calls.run("raise", kind=kind, message="never"))
    assert (outcome.failure.type, outcome.failure.message) == ("PermanentError", "never")
    assert not outcome.retryable


@pytest.mark.parametrize(("delay", "seconds"), [(2.5, 2.5), (None, None), (-1.0, None), (1e300, None)])
async def test_a_temporary_error_sets_its_delay(
    calls: Calls, delay: float | None, seconds: float | None
) -> None:
    outcome = failed_in(await calls.run("raise", kind="temporary", delay=delay))
    assert (outcome.retryable, outcome.delay_seconds) == (True, seconds)


async def test_a_timeout_cancels(calls: Calls, seen: list[object]) -> None:
    report = await calls.run("wait", timeout_seconds=0.05)
    assert isinstance(report.outcome, TimedOut)
    assert re.fullmatch(
        r"it ran longer than its timeout of 50ms and was stopped after \d+\.\ds; "
        "it ended within the grace period of 300ms",
        report.outcome.failure.message,
    ), report.outcome.failure.message
    assert seen == [True]


@pytest.mark.parametrize("ref", ["wait", "wait.then.return"])
async def test_after_a_stop_request_the_stop_is_the_outcome(calls: Calls, ref: str) -> None:
    call, running = calls.start(ref)
    call.stop.request("cancel", "no longer needed")
    report = await running
    assert isinstance(report.outcome, Cancelled)
    assert report.outcome.failure.message == "no longer needed"
    call, running = calls.start(ref)
    call.stop.request("drain", "leaving")
    assert (await running).outcome == Interrupted(kind="drain", reason="leaving")


async def test_a_coroutine_that_ignores_cancellation_is_left_behind_with_a_warning(
    calls: Calls, make_runner: MakeRunner, seen: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    runner = make_runner(RunLimits(grace_seconds=0.05))
    report = await calls.on(runner).run("ignore", timeout_seconds=0.05)
    assert isinstance(report.outcome, TimedOut)
    message = report.outcome.failure.message
    # It was left behind a second after the grace period.
    assert re.fullmatch(
        r"it ran longer than its timeout of 50ms and was stopped after [1-9]\d*\.\ds; "
        "it did not end within the grace period of 50ms and still runs",
        message,
    ), message
    assert "run_left_behind" in caplog.text
    seen.append("release")
    await until(lambda: "released" in seen)


async def test_what_was_stopped_before_it_began_does_not_run(
    module: str, limits: RunLimits, make_call: MakeCall, seen: list[object]
) -> None:
    actions = {found.definition.ref: found for found in load_actions(module)}
    call = make_call("wait")
    call.stop.request("cancel", "no longer needed")
    report = await InLoopRunner(actions, limits).run(call)
    assert isinstance(report.outcome, Cancelled)
    assert seen == []


async def test_a_stop_cancels_once_and_its_last_moment_once_more(
    module: str, limits: RunLimits, make_call: MakeCall, seen: list[object]
) -> None:
    actions = {found.definition.ref: found for found in load_actions(module)}
    call = make_call("count.cancels")
    running = asyncio.create_task(InLoopRunner(actions, limits).run(call))
    await until(lambda: seen == ["begun"])
    for kind, cancels in (("drain", 1), ("cancel", 1), ("lease_lost", 2), ("lease_lost", 2)):
        call.stop.request(kind, kind)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen.count("cancelled") == cancels
    seen.append("release")
    assert (await running).outcome == Interrupted(kind="lease_lost", reason="lease_lost")
