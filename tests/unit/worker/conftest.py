"""Runners under test, a folder of actions, and calls."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.worker.waiting import unreaped, until
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.runners import Call, RunLimits, StopRequest
from turnstile.worker.runners.child_pool import ChildRunner
from turnstile.worker.runners.guardian import Guardian

_ON_BOTH_LOOPS = {
    "test_child_calls",
    "test_child_lives",
    "test_child_output",
    "test_child_stops",
    "test_command_ends",
    "test_command_results",
}


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run what touches file descriptors and processes on uvloop too: a worker uses it where it can."""
    if item.path.stem in _ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


MakeModule = Callable[[str], str]
MakeCall = Callable[..., Call]


@pytest.fixture
def limits() -> RunLimits:
    return RunLimits(grace_seconds=0.3, result_bytes_max=100_000, log_bytes_max=10_000)


@pytest.fixture
def module(request: pytest.FixtureRequest, make_module: MakeModule) -> str:
    """The name of a module that holds the `ACTIONS` of whoever asks."""
    return make_module(request.module.ACTIONS)


@pytest.fixture
async def child_runner(module: str, limits: RunLimits, guardian: Guardian) -> AsyncIterator[ChildRunner]:
    runner = ChildRunner([module], size=2, limits=limits, guardian=guardian)
    yield runner
    await runner.close()


@pytest.fixture
def make_call() -> MakeCall:
    """Make a call of an action with parameters by keyword; `call_` fields by their own name."""
    ids = itertools.count(1)

    def make(ref: str = "tried", *, timeout_seconds: float | None = 20.0, **parameters: Any) -> Call:
        return Call(
            execution_id=ExecutionId(next(ids)),
            attempt=Attempt(1),
            action_ref=ref,
            entrypoint=None,
            parameters_json=json.dumps(parameters),
            timeout_seconds=timeout_seconds,
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            stop=StopRequest(),
        )

    return make


@pytest.fixture
def make_command_call(make_call: MakeCall) -> MakeCall:
    def make(*argv: str, timeout_seconds: float | None = 20.0, **parameters: Any) -> Call:
        call = make_call("command", timeout_seconds=timeout_seconds, **parameters)
        return replace(call, entrypoint=list(argv))

    return make


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeModule]:
    """Write a module into the current folder, importable in the worker and its children; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: list[str] = []

    def make(source: str) -> str:
        # A name of its own: nothing is taken from the import system's caches.
        name = f"actions_{tmp_path.name.replace('-', '_')}_{len(names)}"
        Path(f"{name}.py").write_text(source)
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
async def guardian() -> AsyncIterator[Guardian]:
    with Guardian() as guardian:
        yield guardian
        # A run that was broken off is reaped by the loop, which is about to go.
        await until(lambda: not unreaped())
