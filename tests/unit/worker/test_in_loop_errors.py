"""Async functions that raise: whatever it is becomes a failure, and says whether it may be retried."""

import pytest

from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import failed_in
from turnstile.worker.actions import load_actions
from turnstile.worker.runners import RunLimits
from turnstile.worker.runners.in_loop import InLoopRunner

ACTIONS = """
import asyncio, sys
from turnstile.worker import ExecutionStopped, PermanentError, TemporaryError, action

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
"""


@pytest.fixture
def runner(make_module: MakeModule, limits: RunLimits) -> InLoopRunner:
    actions = load_actions(make_module(ACTIONS))
    return InLoopRunner({found.definition.ref: found for found in actions}, limits)


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
