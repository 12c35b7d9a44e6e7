"""`turnstile.testing.run`: one attempt in this process, with the worker's runners and their verdicts."""

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from turnstile.testing import RunOptions, run, run_async, started, started_async
from turnstile.worker import Context, PermanentError, TemporaryError, action, command_action
from turnstile.worker.actions import ActionsNotFound


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Shirt:
    size: Size
    wanted_at: datetime


@action("testing.order", timeout="20s")
async def order(context: Context, shirts: list[Shirt], customer: int = 7) -> dict[str, Any]:
    print("ordering", len(shirts))
    context.logger.info("for customer %s", customer)
    if not shirts:
        raise PermanentError("no shirts")
    if customer == 0:
        raise TemporaryError("out of stock", delay=7.0)
    return {"sizes": [shirt.size for shirt in shirts], "attempt": context.attempt, "at": shirts[0].wanted_at}


@action("testing.press", timeout="100ms")
def press(context: Context, seconds: float = 0.0) -> str:
    print("pressing")
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        context.check_cancelled()
        time.sleep(0.005)
    return "pressed"


add = command_action(
    "testing.add", argv=[sys.executable, "-c", "import json, sys; print(json.load(sys.stdin)['number'] + 1)"]
)
SHIRT = {"size": "large", "wanted_at": "2026-05-01T08:00:00Z"}


def test_an_async_action_gets_validated_values_and_its_result_is_json() -> None:
    ran = run(order, shirts=[Shirt(Size.LARGE, datetime.fromisoformat("2026-05-01T08:00:00+00:00"))])
    assert ran.expect().result == {"sizes": ["large"], "attempt": 1, "at": "2026-05-01T08:00:00Z"}
    assert "ordering 1\n" in ran.log
    assert "INFO for customer 7" in ran.log


def test_a_failure_has_its_type_its_retry_and_its_traceback() -> None:
    final = run(order, shirts=[])
    assert (final.status, final.error_type, final.error_message) == ("failed", "PermanentError", "no shirts")
    assert not final.retryable
    assert "Traceback" in final.log
    later = run(order, shirts=[SHIRT], customer=0)
    assert (later.error_type, later.retryable, later.retry_delay_seconds) == ("TemporaryError", True, 7.0)
    with pytest.raises(AssertionError, match="ended as failed: PermanentError: no shirts"):
        final.expect()


def test_a_plain_function_and_a_command_run_too() -> None:
    pressed = run(press)
    assert (pressed.expect().result, pressed.log) == ("pressed", "pressing\n")
    assert run(add, number=4).expect().result == 5
    assert run(order, options=RunOptions(attempt=3), shirts=[SHIRT]).result["attempt"] == 3


@action("testing.page", timeout="1m")
def page(context: Context, pages: int) -> list[Any]:
    for number in range(1, pages + 1):
        context.progress(number, pages, f"page {number}")
    assert context.deadline is not None
    left = round((context.deadline - datetime.now(UTC)).total_seconds() / 60)
    return [dict(context.metadata), context.concurrency_key, context.idempotency_key, left]


def test_an_attempt_knows_its_execution_and_reports_its_progress() -> None:
    options = RunOptions(metadata={"order": "A-17"}, concurrency_key="7", idempotency_key="x")
    ran = run(page, options=options, pages=2).expect()
    assert ran.result == [{"order": "A-17"}, "7", "x", 1]
    assert [(each.done, each.total, each.message) for each in ran.progress] == [
        (1, 2, "page 1"),
        (2, 2, "page 2"),
    ]
    assert run(page, pages=0).expect().progress == ()


@action("testing.typed")
async def typed(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_a_result_is_read_by_its_annotation() -> None:
    ran = run(typed, seconds=90)
    assert ran.result == "PT1M30S"
    assert ran.value == timedelta(seconds=90)
    with pytest.raises(AssertionError, match="ended as failed: InvalidParameters"):
        _ = run(typed, seconds="x").value


HOOKED = """
from turnstile import Context, action, lifespan, on_start
from contextlib import asynccontextmanager
import asyncio

CALLS = []

@lifespan
@asynccontextmanager
async def pool(state):
    CALLS.append("open")
    state.loop = asyncio.get_running_loop()
    yield
    CALLS.append("close")

@on_start(where="child")
def model(state):
    CALLS.append("child")
    state.model = "large"
"""
ACTIONS = """
import asyncio
from turnstile import Context, action

@action("hooked.async")
async def in_loop(context: Context) -> list[bool]:
    return [context.state.loop is asyncio.get_running_loop(), hasattr(context.state, "model")]

@action("hooked.plain")
def plain(context: Context) -> str:
    return context.state.model
"""


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[str]]]:
    """Actions, and the calls of the hooks of another top-level module, which this process has imported."""
    # The package has a function of this name, too.
    monkeypatch.setattr(sys.modules["turnstile.worker.lifespan"], "_declared", [])
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in (("hooked_startup", HOOKED), ("hooked_actions", ACTIONS)):
        (tmp_path / f"{name}.py").write_text(source)
    startup, actions = import_module("hooked_startup"), import_module("hooked_actions")
    yield actions, startup.CALLS
    del sys.modules["hooked_startup"], sys.modules["hooked_actions"]


def test_hooks_are_called_for_each_attempt_as_in_the_process_that_would_run_it(
    hooked: tuple[Any, list[str]],
) -> None:
    actions, calls = hooked
    assert run(actions.in_loop).expect().result == [True, False]
    assert calls == ["open", "close"]
    assert run(actions.plain).expect().result == "large"
    assert calls[2:] == ["open", "child", "close"]


async def test_within_started_they_are_called_once(hooked: tuple[Any, list[str]]) -> None:
    actions, calls = hooked

    def run_twice() -> None:
        with started():
            for _ in range(2):
                assert run(actions.in_loop).expect().result == [True, False]
                assert run(actions.plain).expect().result == "large"
            assert calls == ["open", "open", "child"]

    await asyncio.to_thread(run_twice)
    assert calls[3:] == ["close", "close"]
    async with started_async():
        for _ in range(2):
            assert (await run_async(actions.in_loop)).expect().result == [True, False]
        assert calls[5:] == ["open"]
    assert calls[5:] == ["open", "close"]


def test_timeouts_and_cancels_stop_the_attempt() -> None:
    assert run(press, seconds=30).status == "timeout"
    ran = run(press, options=RunOptions(timeout="1m", cancel_after=0.02), seconds=30)
    assert (ran.status, ran.error_message) == ("cancelled", "cancelled by the test")


async def test_attempts_run_side_by_side_and_each_keeps_its_own_log() -> None:
    first, second = await asyncio.gather(
        run_async(order, shirts=[SHIRT], customer=1), run_async(order, shirts=[SHIRT] * 2, customer=2)
    )
    assert ("ordering 1" in first.log, "customer 2" in first.log) == (True, False)
    assert ("ordering 2" in second.log, "customer 1" in second.log) == (True, False)


def test_what_is_printed_outside_an_attempt_stays_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    run(press)
    print("outside")
    assert capsys.readouterr().out == "outside\n"


def test_a_function_without_a_decorator_is_refused() -> None:
    with pytest.raises(ActionsNotFound, match="is no action; decorate"):
        run(len)  # type: ignore[arg-type]
