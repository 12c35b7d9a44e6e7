"""However the code of an action ends, its run has one outcome: in the event loop and in a child process."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import Calls, failed_in, result_of
from turnstile.testing.running import LoopRunner
from turnstile.worker.actions import load_actions
from turnstile.worker.runners.base import RunLimits
from turnstile.worker.runners.child import ChildRunner
from turnstile.worker.runners.in_loop import InLoopRunner
from turnstile.worker.runners.supervisor import Supervisor

ACTIONS = """
import asyncio, os, sys, threading
from turnstile.worker import action

class Own(BaseException):
    pass

class Unprintable(Exception):
    def __str__(self):
        raise Own("no words")

class Odd(Exception):
    def __getattribute__(self, name):
        raise Own(name)

def endless():
    return endless()

async def late():
    return 1

async def lates():
    yield 1

def end(how):
    match how:
        case "generator exit": raise GeneratorExit("left")
        case "stop iteration": raise StopIteration("left")
        case "stop async iteration": raise StopAsyncIteration("left")
        case "interrupt": raise KeyboardInterrupt("left")
        case "exit": sys.exit("left")
        case "cancelled": raise asyncio.CancelledError("left")
        case "own": raise Own("left")
        case "group": raise BaseExceptionGroup("left", [ValueError("one"), GeneratorExit("two")])
        case "group of one": raise BaseExceptionGroup("both", [GeneratorExit("left")])
        case "unprintable": raise Unprintable
        case "odd": raise Odd
        case "recursion": return endless()
        case "process": os._exit(3)
        case "coroutine": return late()
        case "async generator": return lates()
        case "lambda": return lambda: 1
        case "thread": return threading.current_thread()
        case "generator": return (number for number in (1, 2))
        case "failing generator": return (1 / number for number in (1, 0))
        case "closed generator": return (end("generator exit") for _ in "1")

@action("in.loop")
async def in_loop(how: str):
    return end(how)

@action("in.loop.later")
async def in_loop_later(how: str):
    await asyncio.sleep(0)
    return end(how)

@action("in.child")
def in_child(how: str):
    return end(how)

@action("in.child.late")
def in_child_late(how: str):
    # Not declared as `async`, so it runs in a child, which awaits it.
    return in_loop_later(how)
"""

WHERE = ["in.loop", "in.loop.later", "in.child", "in.child.late"]

FAILURES = [
    ("generator exit", "GeneratorExit", "left"),
    # Python itself replaces this one, in an `async def`.
    ("stop iteration", "", ""),
    ("stop async iteration", "StopAsyncIteration", "left"),
    ("interrupt", "KeyboardInterrupt", "left"),
    ("exit", "SystemExit", "left"),
    ("cancelled", "CancelledError", "left"),
    ("own", "Own", "left"),
    ("group", "BaseExceptionGroup", "left (2 sub-exceptions)"),
    ("group of one", "GeneratorExit", "left"),
    ("unprintable", "Unprintable", "<exception str() failed>"),
    ("odd", "Odd", "cannot be read: Own"),
    ("recursion", "RecursionError", "maximum recursion depth exceeded"),
    ("async generator", "InvalidResult", "async_generator"),
    ("lambda", "InvalidResult", "function"),
    ("thread", "InvalidResult", "_MainThread"),
    ("failing generator", "InvalidResult", "division by zero"),
    ("closed generator", "InvalidResult", "GeneratorExit"),
]


@pytest.fixture
async def calls(
    module: str, limits: RunLimits, supervisor: Supervisor, make_call: MakeCall
) -> AsyncIterator[dict[str, Calls]]:
    """The calls of each action, on its runner."""
    actions = {found.definition.ref: found for found in load_actions(module)}
    in_loop = Calls(LoopRunner(InLoopRunner(actions, limits), limits), make_call)
    children = ChildRunner([module], size=1, limits=limits, supervisor=supervisor)
    in_child = Calls(children, make_call)
    yield {ref: in_child if ref.startswith("in.child") else in_loop for ref in actions}
    await children.close()


@pytest.mark.parametrize("where", WHERE)
async def test_whatever_an_action_raises_or_returns_is_its_outcome(
    calls: dict[str, Calls], where: str
) -> None:
    for how, type_name, message in FAILURES:
        async with asyncio.timeout(20):
            outcome = failed_in(await calls[where].run(where, how=how))
        assert type_name in ("", outcome.failure.type), how
        assert message in outcome.failure.message, how
        assert outcome.retryable == (type_name != "InvalidResult"), how
    async with asyncio.timeout(20):
        assert result_of(await calls[where].run(where, how="generator")) == "[1,2]"
        assert result_of(await calls[where].run(where, how="nothing")) == "null"
