"""Commands: what they are given, and what becomes of what they print."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.worker.conftest import MakeCall
from tests.unit.worker.waiting import failed_in, failure_in, peak_bytes, result_of
from turnstile.worker.runners import RunLimits
from turnstile.worker.runners.command import CommandRunner
from turnstile.worker.runners.guardian import Guardian


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


async def test_a_command_sees_the_settings_that_are_to_be_passed_and_no_others(
    guardian: Guardian, make_command_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_API_URL", "http://api.example")
    monkeypatch.setenv("TURNSTILE_API_TOKEN", "secret")
    runner = CommandRunner(RunLimits(variables_passed=frozenset({"TURNSTILE_API_URL"})), guardian)
    report = await runner.run(make_command_call("sh", "-c", "env | grep TURNSTILE_API >&2"))
    assert report.log == "TURNSTILE_API_URL=http://api.example\n"


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
