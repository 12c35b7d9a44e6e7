"""Commands: what they get, what becomes of their output, and how they end."""

import asyncio
import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from tests.support.traffic import until
from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import Calls, failed_in, gone, has_text, peak_bytes, pids_in, result_of
from turnstile.worker.core.outcomes import Cancelled, Completed, TimedOut
from turnstile.worker.runners.base import Interrupted, RunLimits
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.supervisor import Supervisor

# A leader, a child and a grandchild, each of which writes its pid; all sleep.
FAMILY = 'echo $$ >>"$0"; (echo $BASHPID >>"$0"; sleep 1000 & echo $! >>"$0"; wait) & wait'
STUBBORN = "trap '' TERM; echo $$ >\"$0\"; while :; do sleep 0.05; done"


@pytest.fixture
def calls(limits: RunLimits, supervisor: Supervisor, make_command_call: MakeCall) -> Calls:
    return Calls(CommandRunner(limits, supervisor), make_command_call)


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """The file to which the commands write their pids."""
    return tmp_path / "pids"


async def test_parameters_and_the_result_are_json(calls: Calls) -> None:
    report = await calls.run("cat", a=1, b=["ü"])
    assert json.loads(result_of(report)) == {"a": 1, "b": ["ü"]}
    report = await calls.run("true")
    assert (result_of(report), report.log) == ("null", "")


@pytest.mark.parametrize("printed", ["hello", "NaN", '"\\u0000"', "1e400", '{"a":1} 2'])
async def test_output_that_is_not_strict_json_fails_and_is_not_retried(calls: Calls, printed: str) -> None:
    outcome = failed_in(await calls.run("printf", "%s", printed))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)


async def test_stderr_is_the_log_and_a_failure_carries_its_end(calls: Calls) -> None:
    report = await calls.run("sh", "-c", "echo working >&2; echo no disk >&2; exit 3")
    assert report.log == "working\nno disk\n"
    outcome = failed_in(report)
    assert outcome.failure.type == "ExitCode"
    assert "exit code 3" in outcome.failure.message
    assert outcome.failure.message.endswith("no disk")
    assert outcome.retryable


async def test_a_command_sees_its_execution_and_only_the_settings_that_are_passed(
    calls: Calls, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("TURNSTILE_API_URL", "http://api.example")
    runner = CommandRunner(RunLimits(variables_passed=frozenset({"TURNSTILE_API_URL"})), supervisor)
    call, running = calls.on(runner).start("sh", "-c", "env | grep -E '^(TURNSTILE|TRACEPARENT)' | sort >&2")
    *variables, tag = (await running).log.splitlines()
    assert variables == [
        f"TRACEPARENT={call.traceparent}",
        "TURNSTILE_ACTION_REF=command",
        "TURNSTILE_API_URL=http://api.example",
        "TURNSTILE_ATTEMPT=1",
        f"TURNSTILE_EXECUTION_ID={call.execution_id}",
    ]
    assert tag.startswith("TURNSTILE_RUN=")


async def test_a_command_need_not_read_its_stdin(calls: Calls) -> None:
    report = await calls.run("echo", "1", text="x" * 300_000)
    assert result_of(report) == "1"


async def test_a_result_above_the_limit_ends_the_command(calls: Calls, limits: RunLimits) -> None:
    outcome = failed_in(await calls.run("yes"))
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)
    assert str(limits.result_bytes_max) in outcome.failure.message


async def test_a_command_that_does_not_exist_is_not_retried(calls: Calls, tmp_path: Path) -> None:
    outcome = failed_in(await calls.run("/no/such/command"))
    assert (outcome.failure.type, outcome.retryable) == ("CommandNotFound", False)
    outcome = failed_in(await calls.run(str(tmp_path)))
    assert (outcome.failure.type, outcome.retryable) == ("CommandNotStarted", False)


async def test_where_descriptors_are_used_up_an_attempt_is_returned_and_leaves_no_process(
    calls: Calls, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.worker.runners.command._SCARCE_SECONDS", 0.0)
    await calls.run("touch", str(pids))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    outcomes = []
    # Each step of a start fails once, until one finds all that it needs.
    for spare in range(30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, hard))
        try:
            report = await calls.run("sh", "-c", 'echo $$ >>"$0"; sleep 0.1', str(pids))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        outcomes.append(report.outcome)
        if isinstance(report.outcome, Completed):
            break
        assert isinstance(report.outcome, Interrupted), report.outcome
        assert report.outcome.kind == "not_started"
        assert "Too many open files" in report.outcome.reason
    assert len(outcomes) > 5
    assert isinstance(outcomes[-1], Completed)
    await gone([int(each) for each in pids.read_text().split()])  # noqa: ASYNC240


async def test_there_is_no_shell(calls: Calls) -> None:
    report = await calls.run("printf", '"%s"', "$HOME; `id` | x")
    assert result_of(report) == '"$HOME; `id` | x"'


async def test_a_flood_on_stderr_takes_no_memory_and_its_end_is_kept(calls: Calls, limits: RunLimits) -> None:
    before_bytes = peak_bytes()
    flood = "head -c 100000000 /dev/zero >&2; echo the end >&2; echo 5"
    report = await calls.run("sh", "-c", flood)
    assert result_of(report) == "5"
    assert "bytes before this were cut" in report.log
    assert report.log.endswith("the end\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert peak_bytes() - before_bytes < 50_000_000


async def test_a_timeout_ends_the_whole_process_group(calls: Calls, pids: Path) -> None:
    report = await calls.run("bash", "-c", FAMILY, str(pids), timeout_seconds=0.5)
    assert isinstance(report.outcome, TimedOut)
    message = report.outcome.failure.message
    assert message.startswith("it ran longer than its timeout of 500ms and was stopped after ")
    assert message.endswith("; it ended within the grace period of 300ms")
    await gone(pids_in(pids, 3))


async def test_a_cancelled_runner_leaves_no_process(calls: Calls, pids: Path) -> None:
    running = asyncio.create_task(calls.run("bash", "-c", FAMILY, str(pids)))
    await until(lambda: len(pids_in(pids, 3)) == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(pids_in(pids, 3))


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(
    calls: Calls, pids: Path, limits: RunLimits
) -> None:
    call, running = calls.start("sh", "-c", STUBBORN, str(pids))
    await until(lambda: has_text(pids))
    requested_at = time.monotonic()
    call.stop.request("cancel", "enough")
    outcome = (await running).outcome
    assert isinstance(outcome, Cancelled)
    assert outcome.failure.message == (
        "enough; it did not end within the grace period of 300ms and was killed"
    )
    assert limits.grace_seconds <= time.monotonic() - requested_at < limits.grace_seconds + 2
    await gone(pids_in(pids, 1))


async def test_after_a_lost_lease_there_is_no_grace_period(
    calls: Calls, pids: Path, supervisor: Supervisor
) -> None:
    runner = CommandRunner(RunLimits(grace_seconds=60.0), supervisor)
    call, running = calls.on(runner).start("sh", "-c", STUBBORN, str(pids))
    await until(lambda: has_text(pids))
    # Also after a weaker request.
    call.stop.request("drain", "leaving")
    call.stop.request("lease_lost", "the lease is over")
    async with asyncio.timeout(5):
        report = await running
    assert report.outcome == Interrupted(kind="lease_lost", reason="the lease is over")
    await gone(pids_in(pids, 1))


async def test_a_command_that_closes_its_output_has_not_ended(calls: Calls, tmp_path: Path) -> None:
    closing = 'echo 5; exec >&- 2>&-; while [ ! -e "$0" ]; do sleep 0.01; done'
    running = asyncio.create_task(calls.run("sh", "-c", closing, str(tmp_path / "go")))
    endless = await calls.run("sh", "-c", closing, str(tmp_path / "never"), timeout_seconds=0.3)
    assert isinstance(endless.outcome, TimedOut)
    assert not running.done()
    (tmp_path / "go").touch()
    assert result_of(await running) == "5"


async def test_a_command_killed_from_outside_is_a_retryable_failure(calls: Calls) -> None:
    outcome = failed_in(await calls.run("sh", "-c", "kill -9 $$"))
    assert signal.SIGKILL.name in outcome.failure.message
    assert "memory ran out" in outcome.failure.message
    assert outcome.retryable
