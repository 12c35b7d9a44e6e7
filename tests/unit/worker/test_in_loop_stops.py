"""Async functions that are stopped: by a timeout, a cancel or a drain, whether they obey or not."""

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import until
from turnstile.common.domain.outcomes import Cancelled, TimedOut
from turnstile.worker.actions import load_actions
from turnstile.worker.runners import Interrupted, RunLimits
from turnstile.worker.runners.in_loop import InLoopRunner

ACTIONS = """
import asyncio
from turnstile.worker import Context, action

seen = []

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
"""


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
