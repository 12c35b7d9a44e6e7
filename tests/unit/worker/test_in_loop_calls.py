"""Async functions: what they are given, what they may return, and what they log."""

import json
import logging

import pytest

from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import failed_in, result_of
from turnstile.worker.actions import load_actions
from turnstile.worker.runners import RunLimits
from turnstile.worker.runners.in_loop import InLoopRunner

ACTIONS = """
from turnstile.worker import Context, action

@action("add")
async def add(a: int, b: int) -> int:
    return a + b

@action("identity")
async def identity(context: Context) -> dict:
    return {"id": context.execution_id, "attempt": context.attempt, "ref": context.action_ref,
            "trace": context.traceparent}

@action("return")
async def return_(what: str):
    loop = []
    loop.append(loop)
    return {"nan": float("nan"), "deep": {"x": [float("inf")]}, "nul": "a\\0b", "object": object(),
            "large": "x" * 200_000, "word": "NaN and Infinity", "escaped": "\\\\u0000",
            "surrogate": "\\ud800",
            "circle": loop, "none": None, "set": {1}}[what]

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
def runner(make_module: MakeModule, limits: RunLimits) -> InLoopRunner:
    actions = load_actions(make_module(ACTIONS))
    return InLoopRunner({found.definition.ref: found for found in actions}, limits)


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


async def test_log_lines_are_kept_with_the_attempt_and_go_to_the_workers_log(
    runner: InLoopRunner, make_call: MakeCall, caplog: pytest.LogCaptureFixture
) -> None:
    call = make_call("log")
    with caplog.at_level(logging.INFO, logger="turnstile.action"):
        report = await runner.run(call)
    first, second, *traceback = report.log.splitlines()
    assert first.endswith("Z INFO one 1")
    assert second.endswith("Z ERROR two\ufffd")
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    records = [record for record in caplog.records if record.name == "turnstile.action"]
    assert [record.getMessage() for record in records] == ["one 1", "two\ufffd"]
    assert records[0].__dict__["execution_id"] == call.execution_id
    assert records[0].__dict__["action_ref"] == "log"
