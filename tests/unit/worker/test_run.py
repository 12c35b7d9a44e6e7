"""Every run that starts reports one end: the net below the runners."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.traffic import until
from tests.unit.worker.waiting import unreaped
from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Offer, Sender
from turnstile.worker.actions import load_actions
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.core.ports import RunEnd
from turnstile.worker.live import LiveReports
from turnstile.worker.run import ActionRunner
from turnstile.worker.runners.base import RunLimits
from turnstile.worker.runners.registry import Runners
from turnstile.worker.worker_thread import Crossing

ACTIONS = """
import asyncio, time
from pathlib import Path
from turnstile.worker import action, command_action

@action("waits")
async def waits():
    await asyncio.sleep(600)

@action("hangs")
def hangs(path: str):
    Path(path).touch()
    time.sleep(1)
    return "of the first call"

@action("answers")
def answers() -> int:
    return 7

command_action("command", argv=["sleep", "600"])

@action("cancels")
async def cancels(named: str):
    this = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not this and named in task.get_name():
            task.cancel()
"""


@pytest.fixture
async def runners(module: str) -> AsyncIterator[Runners]:
    limits = RunLimits(grace_seconds=0.3)
    async with Runners(
        load_actions(module), [module], concurrency=4, child_processes=1, limits=limits
    ) as each:
        yield each
    # The event loop reaps a run that was killed, and it is about to close.
    await until(lambda: not unreaped())


@pytest.fixture
async def runner(module: str, runners: Runners) -> ActionRunner:
    async def publish(kind: str, body: bytes) -> None:
        raise AssertionError(kind)

    live = LiveReports(publish, lambda: Sender(worker_id="w", session=1, secret="s"), log_seconds=60)
    to_main = Crossing(asyncio.get_running_loop())
    return ActionRunner(runners, load_actions(module), to_main, live, asyncio.Event())


Run = Callable[..., asyncio.Future[RunEnd]]


@pytest.fixture
def run(runner: ActionRunner) -> Run:
    """Run an action; return its end."""
    numbers = iter(range(1, 100))

    def start(ref: str, parameters: str = "{}") -> asyncio.Future[RunEnd]:
        number = next(numbers)
        ended: asyncio.Future[RunEnd] = asyncio.get_running_loop().create_future()
        given = Offer(
            execution_id=number,
            grant=Grant(1, number),
            attempt=1,
            action_ref=ref,
            parameters=parameters.encode(),
        )
        # A second end would raise.
        runner.start(given, ended.set_result)
        return ended

    return start


def failure(end: RunEnd) -> tuple[str, str]:
    assert isinstance(end, Failed), end
    return end.failure.type, end.failure.message


class Own(BaseException):
    pass


@pytest.mark.parametrize(
    ("raised", "message"),
    [(RuntimeError("broken"), "broken"), (Own(), "Own without a message"), (GeneratorExit("left"), "left")],
)
async def test_a_runner_that_raises_ends_its_run_as_failed(
    run: Run, runners: Runners, monkeypatch: pytest.MonkeyPatch, raised: BaseException, message: str
) -> None:
    async def broken(call: object) -> None:
        raise raised

    monkeypatch.setattr(runners.in_loop, "run", broken)
    async with asyncio.timeout(10):
        assert failure(await run("waits")) == (type(raised).__name__, message)


async def test_a_runner_that_returns_nothing_ends_its_run_as_failed(
    run: Run, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(call: object) -> None:
        pass

    monkeypatch.setattr(runners.in_loop, "run", nothing)
    async with asyncio.timeout(10):
        kind, message = failure(await run("waits"))
    assert (kind, "outcome" in message) == ("AttributeError", True)


async def test_code_that_cancels_tasks_of_the_worker_ends_their_runs(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "mark"
    async with asyncio.timeout(30):
        running = [run("waits"), run("command"), run("hangs", f'{{"path": "{mark}"}}')]
        await until(mark.exists, "the child")
        assert isinstance(await run("cancels", '{"named": "execution"}'), Completed)
        ends = [failure(await each) for each in running]
    assert [kind for kind, _ in ends] == ["CancelledError"] * 3
    assert ends[1:] == [("CancelledError", "code in the worker cancelled the task of this run")] * 2
    assert caplog.text.count("runner_cancelled") == 2


async def test_what_a_process_answers_to_a_cancelled_call_is_not_the_answer_to_the_next_one(
    run: Run, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    async with asyncio.timeout(30):
        first = run("hangs", f'{{"path": "{mark}"}}')
        await until(mark.exists, "the child")
        assert isinstance(await run("cancels", '{"named": ": frame"}'), Completed)
        assert failure(await first)[0] == "CancelledError"
        assert await run("answers") == Completed(result_json="7")
