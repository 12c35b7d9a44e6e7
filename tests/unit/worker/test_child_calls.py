"""Plain functions in child processes: what a call is given, and what it brings back."""

import json
from dataclasses import replace

from tests.unit.worker.conftest import MakeCall, MakeModule
from tests.unit.worker.waiting import failed_in, failure_in, result_of
from turnstile.worker.runners import Call, RunLimits
from turnstile.worker.runners.child_pool import ChildRunner
from turnstile.worker.runners.guardian import Guardian

ACTIONS = """
from turnstile.worker import PermanentError, action

@action("add")
def add(a: int, b: int) -> int:
    return a + b

@action("large")
def large(size: int) -> str:
    print("y" * size)
    return "x" * size

@action("raise")
def raise_():
    raise PermanentError("never")

async def undecorated(a: int) -> int:
    return a * 2

def also_undecorated(a: int) -> int:
    return a * 3
"""


async def test_the_return_value_is_the_result(child_runner: ChildRunner, make_call: MakeCall) -> None:
    assert result_of(await child_runner.run(make_call("add", a=2, b=3))) == "5"


async def test_wrong_parameters_fail_for_good_before_the_function_runs(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    outcome = failed_in(await child_runner.run(make_call("add", a="many", b=1)))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidParameters", False)
    assert outcome.failure.message.startswith("a: Input should be a valid integer")


async def test_an_exception_comes_back_with_its_traceback_in_the_log(
    child_runner: ChildRunner, make_call: MakeCall
) -> None:
    report = await child_runner.run(make_call("raise"))
    outcome = failed_in(report)
    assert (outcome.failure.type, outcome.failure.message) == ("PermanentError", "never")
    assert not outcome.retryable
    assert "in raise_" in report.log


async def test_a_large_result_and_a_large_output_pass(child_runner: ChildRunner, make_call: MakeCall) -> None:
    report = await child_runner.run(make_call("large", size=99_000))
    assert json.loads(result_of(report)) == "x" * 99_000
    assert report.log.endswith("yyy\n")
    assert failure_in(await child_runner.run(make_call("large", size=200_000))).type == "ResultTooLarge"


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
    child_runner: ChildRunner, make_call: MakeCall, module: str
) -> None:
    def call(entrypoint: str) -> Call:
        return replace(make_call("elsewhere", a=7), entrypoint=entrypoint)

    assert result_of(await child_runner.run(call(f"{module}:undecorated"))) == "14"
    # The same action under another entrypoint: the definition was changed meanwhile.
    assert result_of(await child_runner.run(call(f"{module}:also_undecorated"))) == "21"
    assert failure_in(await child_runner.run(call(f"{module}:nothing"))).type == "ActionsNotFound"
    assert failure_in(await child_runner.run(make_call("nowhere"))).type == "ActionsNotFound"
