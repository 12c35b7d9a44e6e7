"""A blocked event loop is noticed while it is blocked, and named: action, location, duration."""

import asyncio
import json
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
async def block(seconds: float, times: int = 1, wait: bool = True, in_child_task: bool = False) -> None:
    if in_child_task:
        await asyncio.gather(block(seconds))
        return
    for _ in range(times):
        time.sleep(seconds)  # noqa: ASYNC251  (what must be noticed)
        if wait:
            await asyncio.sleep(0.1)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Beats every 10 ms; blocked after 100 ms."""
    caplog.set_level(logging.INFO, loop_watch.logger.name)
    with monkeypatch.context() as patched:
        patched.setattr(loop_watch, "_BEAT_SECONDS", 0.01)
        patched.setattr(loop_watch, "_BLOCKED_SECONDS", 0.1)
        yield


async def run(seconds: float, **parameters: object) -> str:
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
                parameters_json=json.dumps({"seconds": seconds, **parameters}),
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


async def test_the_action_and_the_location_are_named_while_it_blocks(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    counted = LOOP_BLOCKED.values.get(("watched.block",), 0)
    log = await run(0.6)
    (noticed,) = records(caplog, "event_loop_blocked")
    assert (noticed.__dict__["action_ref"], noticed.__dict__["execution_id"]) == ("watched.block", 7)
    assert noticed.__dict__["location"].startswith("test_loop_watch.py:")
    assert noticed.__dict__["location"].endswith(" in block")
    (over,) = records(caplog, "event_loop_blocked_over")
    assert over.__dict__["seconds"] >= 0.3
    assert over.created - noticed.created > 0.1
    assert "The event loop of the worker is blocked at test_loop_watch.py" in log
    assert LOOP_BLOCKED.values[("watched.block",)] == counted + 1


async def test_what_blocks_in_a_task_of_the_action_is_named_too(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    log = await run(0.5, in_child_task=True)
    (noticed,) = records(caplog, "event_loop_blocked")
    assert (noticed.__dict__["action_ref"], noticed.__dict__["attempt"]) == ("watched.block", 2)
    assert "The event loop was blocked for 0." in log


async def test_a_callback_that_blocks_is_named_without_an_action(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    def block_in_callback() -> None:
        time.sleep(0.5)

    with LoopWatch(InLoopRunner({}, RunLimits())).watching():
        asyncio.get_running_loop().call_soon(block_in_callback)
        await asyncio.sleep(0.05)
    (noticed,) = records(caplog, "event_loop_blocked")
    assert noticed.__dict__["location"].endswith(" in block_in_callback")
    assert "action_ref" not in noticed.__dict__
    (over,) = records(caplog, "event_loop_blocked_over")
    assert over.__dict__["location"] == noticed.__dict__["location"]


async def test_an_action_that_blocks_to_its_end_has_the_time_in_its_log(fast: None) -> None:
    assert "The event loop was blocked for 0." in await run(0.5, wait=False)


async def test_the_same_location_is_logged_once_a_minute_and_its_end_too(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    log = await run(0.4, times=3)
    assert len(records(caplog, "event_loop_blocked")) == 1
    # How long it took and by which action is in one line; the log of the execution has it each time.
    (over,) = (record.__dict__ for record in records(caplog, "event_loop_blocked_over"))
    assert (over["action_ref"], over["execution_id"], over["seconds"] > 0) == ("watched.block", 7, True)
    assert log.count("The event loop was blocked for 0.") == 3
    assert log.count("The event loop of the worker is blocked") == 3


async def test_a_process_that_stands_still_again_and_again_is_two_lines_a_minute(
    fast: None, caplog: pytest.LogCaptureFixture
) -> None:
    counted = LOOP_BLOCKED.values.get(("other",), 0)
    watch = LoopWatch(InLoopRunner({}, RunLimits()))
    for _ in range(50):
        watch._over(2.0)
    assert LOOP_BLOCKED.values[("other",)] == counted + 50
    shown = [(record.getMessage(), record.__dict__.get("seconds")) for record in caplog.records]
    assert shown == [("event_loop_blocked", None), ("event_loop_blocked_over", 2.0)]


async def test_a_loop_that_waits_is_not_blocked(
    fast: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than a busy machine leaves a process without a processor, and shorter than all waits together.
    monkeypatch.setattr(loop_watch, "_BLOCKED_SECONDS", 1.0)
    await run(0.0, times=12)
    assert records(caplog, "event_loop_blocked") == []
    assert records(caplog, "event_loop_blocked_over") == []
