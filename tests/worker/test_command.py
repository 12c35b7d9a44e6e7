"""Commands: what they are given, what becomes of what they print, how they end."""

import asyncio
import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from common.domain.outcomes import Cancelled, TimedOut
from tests.worker.conftest import MakeCall
from tests.worker.waiting import (
    failed_in,
    failure_in,
    gone,
    has_text,
    peak_bytes,
    pids_in,
    result_of,
    stopped_in,
    until,
)
from worker.runners import Interrupted, RunLimits
from worker.runners.command import CommandRunner
from worker.runners.guardian import Guardian

# A leader, a child and a grandchild, each of which writes its number; all sleep.
FAMILY = 'echo $$ >>"$0"; (echo $BASHPID >>"$0"; sleep 1000 & echo $! >>"$0"; wait) & wait'
STUBBORN = "trap '' TERM; echo $$ >\"$0\"; while :; do sleep 0.05; done"


@pytest.fixture
def runner(limits: RunLimits, guardian: Guardian) -> CommandRunner:
    return CommandRunner(limits, guardian)


async def test_parameters_go_in_as_json_and_the_result_comes_out_as_json(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    report = await runner.run(make_command_call("cat", a=1, b=["ü"]))
    assert json.loads(result_of(report)) == {"a": 1, "b": ["ü"]}


async def test_nothing_printed_is_null(runner: CommandRunner, make_command_call: MakeCall) -> None:
    assert result_of(await runner.run(make_command_call("true"))) == "null"


async def test_what_is_not_json_is_refused_and_not_retried(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    for printed in ("hello", "NaN", '"\\u0000"', "1e400", '{"a":1} 2'):
        outcome = failed_in(await runner.run(make_command_call("printf", "%s", printed)))
        assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False), printed


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("[" * 197 + "1" + "]" * 197, "196 levels"),
        ("[" * 300 + "]" * 300, "196 levels"),
        ("9" * 4301, "digits"),
    ],
)
async def test_json_that_could_not_be_read_again_is_refused_and_not_retried(
    runner: CommandRunner, make_command_call: MakeCall, printed: str, says: str
) -> None:
    outcome = failed_in(await runner.run(make_command_call("printf", "%s", printed)))
    assert (outcome.failure.type, outcome.retryable) == ("InvalidResult", False)
    assert says in outcome.failure.message


async def test_stderr_is_the_log_and_a_failure_carries_its_end(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    report = await runner.run(make_command_call("sh", "-c", "echo working >&2; echo no disk >&2; exit 3"))
    assert report.log == "working\nno disk\n"
    outcome = failed_in(report)
    assert outcome.failure.type == "ExitCode"
    assert "exit code 3" in outcome.failure.message
    assert outcome.failure.message.endswith("no disk")
    assert outcome.retryable


async def test_a_command_is_told_who_it_is_and_none_of_our_settings(
    runner: CommandRunner, make_command_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_DATABASE_URL", "postgresql://secret")
    call = make_command_call("sh", "-c", "env | grep -E '^(TURNSTILE|TRACEPARENT)' | sort >&2")
    *told, mark = (await runner.run(call)).log.splitlines()
    assert told == [
        f"TRACEPARENT={call.traceparent}",
        "TURNSTILE_ACTION_REF=command",
        "TURNSTILE_ATTEMPT=1",
        f"TURNSTILE_EXECUTION_ID={call.execution_id}",
    ]
    assert mark.startswith("TURNSTILE_RUN=")


async def test_a_command_that_does_not_read_its_stdin_is_no_problem(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    report = await runner.run(make_command_call("echo", "1", text="x" * 300_000))
    assert result_of(report) == "1"


async def test_a_result_above_the_bound_ends_the_command_and_is_not_retried(
    runner: CommandRunner, make_command_call: MakeCall, limits: RunLimits
) -> None:
    outcome = failed_in(await runner.run(make_command_call("yes")))
    assert (outcome.failure.type, outcome.retryable) == ("ResultTooLarge", False)
    assert str(limits.result_bytes_max) in outcome.failure.message


async def test_of_a_long_log_the_end_is_kept(
    runner: CommandRunner, make_command_call: MakeCall, limits: RunLimits
) -> None:
    report = await runner.run(make_command_call("sh", "-c", "seq 100000 >&2"))
    assert report.log.endswith("99999\n100000\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert "bytes before this were cut" in report.log


async def test_a_log_can_be_stored_whatever_was_printed(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    report = await runner.run(make_command_call("printf", "%s", "1", text=""))
    assert report.log == ""
    report = await runner.run(make_command_call("sh", "-c", r"printf 'a\000b\377c' >&2"))
    assert report.log == "a\ufffdb\ufffdc"


async def test_a_command_that_is_not_there_is_not_retried(
    runner: CommandRunner, make_command_call: MakeCall, tmp_path: Path
) -> None:
    outcome = failed_in(await runner.run(make_command_call("/no/such/command")))
    assert (outcome.failure.type, outcome.retryable) == ("CommandNotFound", False)
    outcome = failed_in(await runner.run(make_command_call(str(tmp_path))))
    assert (outcome.failure.type, outcome.retryable) == ("CommandNotStarted", False)


async def test_there_is_no_shell(runner: CommandRunner, make_command_call: MakeCall) -> None:
    report = await runner.run(make_command_call("printf", '"%s"', "$HOME; `id` | x"))
    assert result_of(report) == '"$HOME; `id` | x"'


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


async def test_a_flood_on_stderr_takes_no_memory_and_its_end_is_kept(
    runner: CommandRunner, make_command_call: MakeCall, limits: RunLimits
) -> None:
    before_bytes = peak_bytes()
    flood = "head -c 100000000 /dev/zero >&2; echo the end >&2; echo 5"
    report = await runner.run(make_command_call("sh", "-c", flood))
    assert result_of(report) == "5"
    assert report.log.endswith("the end\n")
    assert len(report.log) < limits.log_bytes_max + 100
    assert peak_bytes() - before_bytes < 50_000_000


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


async def test_fifty_commands_at_once_keep_their_results_apart(
    runner: CommandRunner, make_command_call: MakeCall
) -> None:
    reports = await asyncio.gather(*(runner.run(make_command_call("cat", n=n)) for n in range(50)))
    assert [json.loads(result_of(report))["n"] for report in reports] == list(range(50))


async def test_an_action_without_argv_fails_for_good(runner: CommandRunner, make_call: MakeCall) -> None:
    nothing: list[list[str] | None] = [None, []]
    for entrypoint in nothing:
        report = await runner.run(replace(make_call(), entrypoint=entrypoint))
        assert failure_in(report).type == "InvalidEntrypoint"
