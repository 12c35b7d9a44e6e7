"""Runners under test, a folder of actions, and calls."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.traffic import until
from tests.unit.worker.waiting import unreaped
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker.runners.base import Call, RunLimits, StopRequest
from turnstile.worker.runners.supervisor import Supervisor


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of child processes and commands on uvloop, as a worker does; the others on asyncio."""
    if item.path.stem in ("test_child", "test_command"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


MakeModule = Callable[[str], str]
MakeCall = Callable[..., Call]


@pytest.fixture
def limits() -> RunLimits:
    return RunLimits(grace_seconds=0.3, result_bytes_max=100_000, log_bytes_max=10_000)


@pytest.fixture
def module(request: pytest.FixtureRequest, make_module: MakeModule) -> str:
    """The name of a module with the `ACTIONS` of the test module."""
    return make_module(request.module.ACTIONS)


@pytest.fixture
def make_call() -> MakeCall:
    """Make a call of an action; its parameters are given by keyword."""
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
    """Write a module that the worker and its children can import; return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: list[str] = []

    def make(source: str) -> str:
        # A unique name, because the import system caches modules.
        name = f"actions_{tmp_path.name.replace('-', '_')}_{len(names)}"
        Path(f"{name}.py").write_text(source)
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    with closing(Supervisor()) as supervisor:
        yield supervisor
        # The event loop reaps a run that was cancelled, and it is about to close.
        await until(lambda: not unreaped())
