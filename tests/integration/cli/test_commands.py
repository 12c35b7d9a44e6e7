"""The client commands against a real executor and a real worker: submit, get, list and queue."""

import re
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from tests.integration.cli.conftest import CommandLines, until
from tests.support.processes import System
from turnstile.common.exit_codes import ExitCode


def test_submit_and_wait_shows_result_or_error_and_exits_by_the_outcome(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.add", "a=4", "b=3", "--wait", "--json")
    assert (ended.exit_code, ended.json["status"], ended.json["result"]) == (0, "completed", 7)
    ended = system.executor("submit", "cli.fail", "message=no paper", "--wait")
    assert ended.exit_code == ExitCode.FAILED
    assert "PermanentError: no paper" in ended.out
    assert ended.err.startswith("Traceback (most recent call last):")
    assert "served_actions.py" in ended.err
    assert ended.err.rstrip().endswith("PermanentError: no paper")
    ended = system.executor("submit", "cli.add", "a=4", "b=3", "--concurrency-key", "k", "--wait")
    assert (ended.exit_code, ended.out) == (ExitCode.FAILED, "")
    assert "invalid_parameters: concurrency_key: the action has no keys" in ended.err


def test_what_failed_is_shown_with_its_traceback_and_the_commands_for_more(system: CommandLines) -> None:
    failed = system.executor("submit", "cli.fail", "message=no paper", "--wait", "--json")
    execution_id = failed.json["id"]
    shown = system.executor("get", str(execution_id)).out
    assert "Traceback (most recent call last):" in shown
    assert shown.splitlines()[-2:] == [
        f"Logs:  executor logs {execution_id}", f"Retry: executor retry {execution_id}"
    ]  # fmt: skip
    assert "Traceback" not in system.executor("get", str(execution_id), "--json").out


def test_what_waits_is_shown_with_the_blocker_first_and_its_way_to_a_start(
    system: CommandLines, ref: str
) -> None:
    holder, waiting = system.submit(ref), system.submit(ref)
    lines = system.executor("get", str(waiting)).out.splitlines()
    assert lines[0].startswith(f"Waits: 1 of 1 slots in use, held by #{holder} for ")
    assert lines[1].endswith(f": executor actions limit {ref} NUMBER")
    assert lines[3].split() == ["ON", "THE", "WAY", "STATE", "NEEDS", "HELD"]
    assert [line.split()[0] for line in lines[4:6]] == ["queue", "pool"]
    assert "waits here, blocker" in lines[4]
    assert max(map(len, lines[:6])) < 140


def test_an_invalid_request_is_exit_code_2(system: CommandLines) -> None:
    for wrong in (["not a ref"], ["cli.add", "--callback-url", "here"], []):
        assert system.executor("submit", *wrong).exit_code == ExitCode.USAGE


def test_a_timeout_of_wait_is_exit_code_4_and_cancels_nothing(system: CommandLines, ref: str) -> None:
    ended = system.executor("submit", ref, "--wait", "--wait-timeout", "200ms")
    assert ended.exit_code == ExitCode.TIMED_OUT
    (left,) = system.executor("list", "--action", ref, "--json").json["items"]
    assert left["status"] == "scheduled"
    assert f"'executor get {left['id']}'" in ended.err


def test_every_option_of_submit_reaches_the_execution(system: CommandLines, ref: str) -> None:
    system.apply(ref=ref, max_concurrent=1, pool="empty", submitter_keys=True)
    options = [
        "--parameters",
        '{"a": 1, "b": 2}',
        "--metadata",
        "team=green",
        "--idempotency-key",
        f"{ref}:1",
    ]
    more = ["--concurrency-key", "k", "--run-at", "2100-01-01T00:00:00Z", "--ttl", "1h", "--timeout", "5m"]
    execution_id = system.submit(ref, "b=3", "--priority", "2", *options, *more)
    found = system.executor("get", str(execution_id), "--json").json
    assert (found["parameters"], found["metadata"]) == ({"a": 1, "b": 3}, {"team": "green"})
    assert (found["status"], found["concurrency_key"], found["priority"]) == ("delayed", "k", 2)
    assert found["run_at"] == "2100-01-01T00:00:00Z"
    later = system.executor(
        "get", str(system.submit(ref, "--concurrency-key", "k", "--delay", "1h")), "--json"
    )
    waits = [datetime.fromisoformat(later.json[name]) for name in ("run_at", "created_at")]
    assert round((waits[0] - waits[1]).total_seconds()) == 3600


def test_a_bulk_wait_prints_the_outcome_of_every_line(system: CommandLines) -> None:
    requests = {"fail": "{}", "add": '{"a": 1}', "talk": '{"until": 5}'}
    lines = "".join(f'{{"action_ref": "cli.{ref}", "parameters": {p}}}\n' for ref, p in requests.items())
    ended = system.executor("submit", "--bulk", "-", "--wait", "--json", stdin=lines)
    assert ended.exit_code == ExitCode.FAILED
    found = {end["line"]: end for end in ended.lines}
    assert [found[line]["status"] for line in (1, 2, 3)] == ["failed", "completed", 422]
    assert found[3]["code"] == "invalid_parameters"


async def test_a_submission_in_a_transaction_is_shown(
    system: CommandLines, processes: System, ref: str
) -> None:
    connection = await asyncpg.connect(processes.database_url)
    request_id = await connection.fetchval("SELECT turnstile.submit($1)", ref)
    invalid = await connection.fetchval("SELECT turnstile.submit('cli.add', '{\"a\": \"one\"}')")
    await connection.close()

    def outcome(id_: UUID) -> Any:
        return system.executor("submission", str(id_), "--json").json

    until(lambda: outcome(request_id)["status"] == "admitted" and outcome(invalid)["status"] == "rejected")
    shown = system.executor("submission", str(request_id)).out
    assert re.search(rf"execution_id +{outcome(request_id)['execution_id']}\b", shown)
    refused = outcome(invalid)
    assert refused["code"] == "invalid_parameters"
    assert "parameters.a: expected a whole number" in refused["message"]
    assert "executor actions show cli.add" in refused["message"]
    unknown = system.executor("submission", str(uuid4()))
    assert unknown.exit_code == ExitCode.FAILED
    assert "its transaction is open or was rolled back" in unknown.err


def test_actions_workers_and_queues_are_listed(system: CommandLines, ref: str) -> None:
    system.apply(ref=ref, max_concurrent=1, pool="empty", submitter_keys=True)
    system.submit(ref), system.submit(ref), system.submit(ref, "--concurrency-key", "k")
    assert ref in system.executor("actions", "list").out
    live = system.executor("workers", "list", "--state", "live", "--json").json["items"]
    (worker,) = [each for each in live if each["id"] != "silent"]
    assert worker["id"] in system.executor("workers", "list").out
    stats = system.executor("queue", "stats", ref, "--json").json
    assert (stats["queue_length"], stats["active_count"], stats["waiting"]["limit"]) == (1, 2, 1)
    system.executor("actions", "keys", "set", ref, "k", "--max-concurrent", "4")
    shown = system.executor("queue", "stats", ref).out
    assert "for the limit" in shown
    assert re.search(r"slots in use +2, limit 1 for each key", shown)
    assert re.search(r"^k +0 +1 of 4", shown, re.MULTILINE)


def test_an_invalid_token_is_exit_code_1(system: CommandLines) -> None:
    for token, said in (("another", "does not accept the token"), ("", "requires a token")):
        ended = system.executor("list", TURNSTILE_API_TOKEN=token)
        assert (ended.exit_code, ended.err.split(":")[0]) == (ExitCode.FAILED, "unauthorized")
        assert said in ended.err
        assert "TURNSTILE_API_TOKEN" in ended.err


def test_queue_list_shows_holders_and_positions_in_order_by_page(system: CommandLines, ref: str) -> None:
    assert system.executor("queue", "line", ref).out == "No slot is in use\n\nQueue is empty\n", (
        "the former name"
    )
    holder, *waiting = [system.submit(ref) for _ in range(4)]
    found = system.executor("queue", "list", ref, "--json").json
    assert [each["id"] for each in found["holders"]] == [holder]
    assert [(each["position"], each["id"]) for each in found["items"]] == list(enumerate(waiting, start=1))
    shown = system.executor("queue", "list", ref)
    assert [line.split()[0] for line in shown.out.splitlines() if line] == [
        "SLOT", str(holder), "POSITION", "1", "2", "3",
    ]  # fmt: skip
    page = system.executor("queue", "list", ref, "--limit", "1", "--json").json
    rest = system.executor("queue", "list", ref, "--cursor", page["next_cursor"], "--json").json
    assert [each["id"] for each in [*page["items"], *rest["items"]]] == waiting
    assert rest["next_cursor"] is None
    assert "more available" in system.executor("queue", "list", ref, "--limit", "1").err
