"""Commands: how they end, by themselves or stopped, and that nothing of them stays."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, gone, has_text, pids_in, result_of, stopped_in, until
from turnstile.common.domain.outcomes import Cancelled, TimedOut
from turnstile.worker.runners import Interrupted, RunLimits
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.guardian import Guardian

# A leader, a child and a grandchild, each of which writes its number; all sleep.
FAMILY = 'echo $$ >>"$0"; (echo $BASHPID >>"$0"; sleep 1000 & echo $! >>"$0"; wait) & wait'
STUBBORN = "trap '' TERM; echo $$ >\"$0\"; while :; do sleep 0.05; done"


@pytest.fixture
def runner(limits: RunLimits, guardian: Guardian) -> CommandRunner:
    return CommandRunner(limits, guardian)


async def test_a_timeout_ends_the_whole_process_group(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    call = make_command_call("bash", "-c", FAMILY, str(pids), timeout_seconds=0.5)
    report = await runner.run(call)
    assert isinstance(report.outcome, TimedOut)
    assert "500ms" in report.outcome.failure.message
    await gone(pids_in(pids, 3))


async def test_a_cancel_ends_the_whole_process_group(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    call = make_command_call("bash", "-c", FAMILY, str(pids))
    running = asyncio.create_task(runner.run(call))
    await until(lambda: len(pids_in(pids, 3)) == 3)
    call.stop.ask("cancel", "no longer needed")
    report = await running
    assert isinstance(report.outcome, Cancelled)
    assert report.outcome.failure.message == "no longer needed"
    await gone(pids_in(pids, 3))


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path, limits: RunLimits
) -> None:
    pids = tmp_path / "pids"
    call = make_command_call("sh", "-c", STUBBORN, str(pids))
    running = asyncio.create_task(runner.run(call))
    await until(lambda: has_text(pids))
    asked_at = time.monotonic()
    call.stop.ask("cancel", "enough")
    report = await running
    assert isinstance(report.outcome, Cancelled)
    assert limits.grace_seconds <= time.monotonic() - asked_at < limits.grace_seconds + 2
    await gone(pids_in(pids, 1))


async def test_after_a_lost_lease_there_is_no_grace(
    make_command_call: MakeCall, tmp_path: Path, guardian: Guardian
) -> None:
    pids = tmp_path / "pids"
    call = make_command_call("sh", "-c", STUBBORN, str(pids))
    running = asyncio.create_task(CommandRunner(RunLimits(grace_seconds=60.0), guardian).run(call))
    await until(lambda: has_text(pids))
    # Also when it was asked for something milder before.
    call.stop.ask("drain", "leaving")
    call.stop.ask("lease_lost", "the lease is over")
    async with asyncio.timeout(5):
        report = await running
    assert report.outcome == Interrupted(kind="lease_lost", reason="the lease is over")
    await gone(pids_in(pids, 1))


async def test_a_drain_interrupts_and_reports_no_outcome(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    # It answers the signal with a result; that must not be taken for the whole result.
    command = 'trap "echo 1; exit 0" TERM; echo $$ >"$0"; while :; do sleep 0.05; done'
    call = make_command_call("sh", "-c", command, str(tmp_path / "pids"))
    running = asyncio.create_task(runner.run(call))
    await until(lambda: has_text(tmp_path / "pids"))
    call.stop.ask("drain", "the worker stops")
    assert stopped_in(await running) == Interrupted(kind="drain", reason="the worker stops")


async def test_stragglers_are_killed_after_a_normal_end(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    call = make_command_call("sh", "-c", 'sleep 1000 & echo $! >"$0"; echo 5', str(pids))
    report = await runner.run(call)
    assert result_of(report) == "5"
    await gone(pids_in(pids, 1))


async def test_a_daemon_that_keeps_the_pipes_open_does_not_hold_the_run(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    daemon = 'setsid sh -c \'echo $$ >"$0"; exec sleep 1000\' "$0" &'
    command = f'{daemon} while [ ! -s "$0" ]; do sleep 0.01; done; echo 5'
    async with asyncio.timeout(5):
        report = await runner.run(make_command_call("sh", "-c", command, str(pids)))
    assert result_of(report) == "5"
    await gone(pids_in(pids, 1))


async def test_a_command_that_closes_its_output_has_not_ended(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    closing = 'echo 5; exec >&- 2>&-; while [ ! -e "$0" ]; do sleep 0.01; done'
    running = asyncio.create_task(runner.run(make_command_call("sh", "-c", closing, str(tmp_path / "go"))))
    endless = make_command_call("sh", "-c", closing, str(tmp_path / "never"), timeout_seconds=0.3)
    assert isinstance((await runner.run(endless)).outcome, TimedOut)
    assert not running.done()
    (tmp_path / "go").touch()
    assert result_of(await running) == "5"


async def test_a_command_killed_from_outside_is_a_failure_that_may_be_retried(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    outcome = failed_in(await runner.run(make_command_call("sh", "-c", "kill -9 $$")))
    assert signal.SIGKILL.name in outcome.failure.message
    assert "memory ran out" in outcome.failure.message
    assert outcome.retryable


async def test_a_cancelled_runner_leaves_no_process(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    running = asyncio.create_task(runner.run(make_command_call("bash", "-c", FAMILY, str(pids))))
    await until(lambda: len(pids_in(pids, 3)) == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(pids_in(pids, 3))
