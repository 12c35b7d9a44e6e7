"""A blocked event loop is noticed while it is blocked, and named: action, place, duration."""

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest

from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.worker import action, loop_watch
from turnstile.worker.actions import registered_action
from turnstile.worker.logs import LogTail
from turnstile.worker.loop_watch import LoopWatch
from turnstile.worker.metrics import LOOP_BLOCKED
from turnstile.worker.runners.base import Call, RunLimits, StopRequest
from turnstile.worker.runners.in_loop import InLoopRunner


@action("watched.block")
async def block(seconds: float, times: int = 1) -> None:
    for _ in range(times):
        time.sleep(seconds)  # noqa: ASYNC251  (what must be noticed)
        await asyncio.sleep(0.1)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Beats every 10 ms; blocked after 100 ms."""
    with monkeypatch.context() as patched:
        patched.setattr(loop_watch, "_BEAT_SECONDS", 0.01)
        patched.setattr(loop_watch, "_BLOCKED_SECONDS", 0.1)
        yield


async def run(seconds: float, times: int = 1) -> str:
    """Run the action under watch; return its log."""
    logs: list[LogTail] = []
    registered = registered_action(block)
    runner = InLoopRunner({"watched.block": registered}, RunLimits())
    with LoopWatch(runner).watching():
        report = await runner.run(
            Call(
                execution_id=ExecutionId(7),
                attempt=Attempt(2),
                action_ref="watched.block",
                entrypoint=None,
                parameters_json=f'{{"seconds": {seconds}, "times": {times}}}',
                traceparent=None,
                timeout_seconds=None,
                stop=StopRequest(),
                on_log=logs.append,
            )
        )
        # The beat after the last block.
        await asyncio.sleep(0.1)
    return report.log


def records(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == event]


async def test_the_action_and_the_place_are_named_while_it_blocks(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    counted = LOOP_BLOCKED.values.get(("watched.block",), 0)
    log = await run(0.6)
    (noticed,) = records(caplog, "event_loop_blocked")
    assert (noticed.__dict__["action_ref"], noticed.__dict__["execution_id"]) == ("watched.block", 7)
    assert noticed.__dict__["place"].startswith("test_loop_watch.py:")
    assert noticed.__dict__["place"].endswith(" in block")
    (over,) = records(caplog, "event_loop_blocked_over")
    assert over.__dict__["seconds"] >= 0.3
    assert over.created - noticed.created > 0.1
    assert "The event loop of the worker is blocked at test_loop_watch.py" in log
    assert LOOP_BLOCKED.values[("watched.block",)] == counted + 1


async def test_the_same_place_is_logged_once_a_minute(fast: None, caplog: pytest.LogCaptureFixture) -> None:
    log = await run(0.4, times=3)
    assert len(records(caplog, "event_loop_blocked")) == 1
    assert log.count("The event loop of the worker is blocked") == 3


async def test_a_loop_that_waits_is_not_blocked(fast: None, caplog: pytest.LogCaptureFixture) -> None:
    await run(0.0, times=4)
    assert records(caplog, "event_loop_blocked") == []
    assert records(caplog, "event_loop_blocked_over") == []
