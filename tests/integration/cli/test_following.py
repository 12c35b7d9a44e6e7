"""`logs --follow`, `watch` and `workers drain` against real processes; completion by the shell."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integration.cli.conftest import SERVED_ACTIONS, CommandLines, until
from tests.support.processes import System
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli import app


def environment(system: CommandLines) -> Mapping[str, str]:
    return {**os.environ, **system.environment, "PYTHONUNBUFFERED": "1"}


def test_logs_are_followed_while_the_execution_runs(system: CommandLines, tmp_path: Path) -> None:
    end = tmp_path / "until"
    execution_id = system.submit("cli.talk", f"until={end}")
    with subprocess.Popen(
        [sys.executable, "-m", "turnstile.executor.cli", "logs", str(execution_id), "--follow"],
        env=environment(system),
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        assert system.executor("get", str(execution_id), "--json").json["status"] == "running"
        end.touch()
        rest = following.stdout.read()
    assert (first.endswith("INFO first word\n"), rest.endswith("INFO last word\n")) == (True, True)
    assert following.returncode == 0
    again = system.executor("logs", str(execution_id))
    assert again.out == first + rest
    pieces = system.executor("logs", str(execution_id), "--attempt", "1", "--json").lines
    assert "".join(piece["text"] for piece in pieces) == first + rest


def test_watch_ends_with_the_execution_and_its_exit_code_is_the_outcome(
    system: CommandLines, ref: str, tmp_path: Path
) -> None:
    (tmp_path / "until").touch()
    done = system.executor("watch", str(system.submit("cli.talk", f"until={tmp_path}/until")), "--logs")
    assert done.exit_code == 0
    assert "cli.talk: completed" in done.out
    assert "last word" in done.out
    failed = system.executor("watch", str(system.submit("cli.fail", "message=no paper")))
    assert failed.exit_code == ExitCode.FAILED
    assert "PermanentError: no paper" in failed.out
    cancelled = system.submit(ref)
    system.executor("cancel", str(cancelled))
    ended = system.executor("watch", str(cancelled), "--json")
    assert (ended.exit_code, [line["status"] for line in ended.lines]) == (6, ["cancelled"])


@pytest.mark.asyncio(loop_scope="package")
async def test_a_drained_worker_stops_and_an_unknown_one_is_named(
    system: CommandLines, processes: System
) -> None:
    named = {"TURNSTILE_WORKER_NAME": "drained", "TURNSTILE_WORKER_POOLS": "apart", "TURNSTILE_MISSPELT": "1"}
    worker = await processes.start_worker(SERVED_ACTIONS, **named)
    worker_id = until_seen(system, "drained", "live")
    shown = system.executor("workers", "show", "drained").out
    assert worker_id in shown
    assert "unknown_setting variable=TURNSTILE_MISSPELT" in shown
    assert "pool_without_actions pool=apart pools_of_its_actions=default" in shown
    assert (
        system.executor("workers", "show", worker_id, "--json").json["pool_capacities"][0]["pool"] == "apart"
    )
    ended = system.executor("workers", "drain", worker_id, "unknown", "--yes")
    assert (ended.exit_code, ended.out.split(":")[0]) == (ExitCode.FAILED, worker_id)
    assert "unknown: not_found" in ended.err
    assert until_seen(system, "drained", "stopped") == worker_id
    assert await worker.stop() == 0


def until_seen(system: CommandLines, name: str, state: str) -> str:
    """Wait for a worker in a state and return its id."""
    found: list[str] = []

    def is_found() -> bool:
        workers = system.executor("workers", "list", "--state", state, "--json").json["items"]
        found[:] = [str(worker["id"]) for worker in workers if worker["name"] == name]
        return bool(found)

    until(is_found)
    return found[0]


def completed(system: CommandLines, words: str, **settings: str) -> list[str]:
    """Return the completions of the last word."""
    completing = {
        "_EXECUTOR_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    settings_of_completion = {**system.environment, **completing, **settings}
    return CliRunner().invoke(app, [], prog_name="executor", env=settings_of_completion).output.split()


def test_commands_and_names_of_actions_are_completed_by_the_shell(system: CommandLines, ref: str) -> None:
    assert completed(system, "executor actions l") == ["list", "limit"]
    # Completion gives up after a second, so a busy machine may need a second try.
    until(lambda: completed(system, f"executor actions show {ref[:8]}") == [ref])
    assert completed(system, "executor actions show c", TURNSTILE_API_URL="http://127.0.0.1:1") == []
