"""The client commands against a real executor and a real worker: submit, get, list and queue."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from tests.integration.cli.conftest import CommandLines, until
from tests.support.processes import System
from turnstile.common.cli import EXIT_FAILED, EXIT_TIMED_OUT, EXIT_USAGE


def test_submit_and_wait_shows_result_or_error_and_exits_by_the_outcome(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.add", "a=4", "b=3", "--wait", "--json")
    assert (ended.exit_code, ended.json["status"], ended.json["result"]) == (0, "completed", 7)
    ended = system.executor("submit", "cli.fail", "message=no paper", "--wait")
    assert ended.exit_code == EXIT_FAILED
    assert "PermanentError: no paper" in ended.out
    assert ended.err.startswith("Traceback (most recent call last):")
    assert "served_actions.py" in ended.err
    assert ended.err.rstrip().endswith("PermanentError: no paper")
    ended = system.executor("submit", "cli.add", "a=4", "b=3", "--concurrency-key", "k", "--wait")
    assert (ended.exit_code, ended.out) == (EXIT_FAILED, "")
    assert "invalid_parameters: concurrency_key: the action has no keys" in ended.err


def test_an_invalid_request_is_exit_code_2(system: CommandLines) -> None:
    for wrong in (["not a ref"], ["cli.add", "--callback-url", "here"], []):
        assert system.executor("submit", *wrong).exit_code == EXIT_USAGE


def test_a_timeout_of_wait_is_exit_code_4_and_cancels_nothing(system: CommandLines, ref: str) -> None:
    ended = system.executor("submit", ref, "--wait", "--wait-timeout", "200ms")
    assert ended.exit_code == EXIT_TIMED_OUT
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


def test_each_line_has_its_priority_and_a_list_is_filtered_by_it(system: CommandLines, ref: str) -> None:
    lines = "\n".join(f'{{"priority": {each}}}' for each in ("1", "0", "6", '"high"', "true", "2.5", "null"))
    ended = system.executor("submit", ref, "--bulk", "-", "--priority", "5", stdin=lines + "\n{}")
    assert (ended.exit_code, ended.out.strip()) == (EXIT_FAILED, "2 accepted (0 duplicates), 6 rejected")
    for number, line in enumerate(ended.err.splitlines(), start=2):
        assert line.startswith(f"line {number}: invalid_message: priority: expected a whole number from 1 ")
    last, first = system.executor("list", "--action", ref, "--json").json["items"]
    assert (first["priority"], last["priority"]) == (1, 5)
    found = system.executor("list", "--action", ref, "--priority", "5", "--json").json["items"]
    assert [item["id"] for item in found] == [last["id"]]
    assert "priority" in system.executor("get", str(last["id"])).out
    cancelled = system.executor("cancel", "--action", ref, "--priority", "1", "--yes", "--json").json
    assert [item["id"] for item in cancelled["items"]] == [first["id"]]


def test_an_invalid_priority_is_wrong_usage(system: CommandLines, ref: str) -> None:
    for command in (["submit", ref], ["submit", ref, "--bulk", "-"], ["list"], ["cancel"], ["retry"]):
        ended = system.executor(*command, "--priority", "6", stdin="{}")
        assert ended.exit_code == EXIT_USAGE
        # Typer breaks the message into the lines of a box.
        assert "expected a whole number from 1 (first) to 5" in ended.err
    assert system.executor("list", "--action", ref, "--json").json["items"] == []


def test_a_repeated_key_is_shown_as_a_duplicate(system: CommandLines, ref: str) -> None:
    first, again = (system.executor("submit", ref, "--idempotency-key", ref) for _ in range(2))
    assert first.out.split(":")[0] == again.out.split(":")[0]
    assert "duplicate: this idempotency key was used before" in again.out
    found = system.executor("list", "--idempotency-key", ref, "--json").json["items"]
    assert [each["action_ref"] for each in found] == [ref]


def test_get_says_why_it_waits(system: CommandLines, ref: str) -> None:
    holder, waiting = system.submit(ref), system.submit(ref)
    shown = system.executor("get", str(waiting)).out
    assert f"position 1 of 1 in {ref}; 1 of 1 slots in use, held by #{holder}" in shown
    assert "about to start at a worker" in system.executor("get", str(holder)).out
    system.apply(ref=f"{ref}.alone", pool="deserted")
    alone = system.submit(f"{ref}.alone")
    shown = system.executor("get", str(alone)).out
    assert "no live worker in pool deserted serves the action" in shown


def test_list_is_paginated_and_a_warning_says_when_there_is_more(system: CommandLines, ref: str) -> None:
    bodies = "\n".join(json.dumps({"parameters": {"number": number}}) for number in range(5))
    assert system.executor("submit", ref, "--bulk", "-", stdin=bodies).exit_code == 0
    first = system.executor("list", "--action", ref, "--limit", "3", "--json").json
    rest = system.executor("list", "--action", ref, "--cursor", first["next_cursor"], "--json").json
    numbers = [item["parameters"]["number"] for item in [*first["items"], *rest["items"]]]
    assert numbers == [4, 3, 2, 1, 0]
    assert rest["next_cursor"] is None
    assert "more available" in system.executor("list", "--action", ref, "--limit", "3").err
    queued = system.executor("list", "--action", ref, "--status", "queued", "--json").json["items"]
    assert len(queued) == 4


def test_a_bulk_submit_keeps_the_order_of_its_lines_over_many_lists(
    system: CommandLines, ref: str, tmp_path: Path
) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(json.dumps({"parameters": {"number": n}}) + "\n" for n in range(1200)))
    ended = system.executor("submit", ref, "--bulk", str(file), "--json")
    assert ended.exit_code == 0
    ids = [answer["id"] for answer in ended.lines]
    assert ids == sorted(ids)
    assert [answer["line"] for answer in ended.lines] == list(range(1, 1201))
    listed = system.executor("list", "--action", ref, "--limit", "1200", "--json").json["items"]
    assert [item["parameters"]["number"] for item in reversed(listed)] == list(range(1200))


def test_a_rejected_line_is_named_and_affects_no_other(system: CommandLines) -> None:
    good, unknown = '{"parameters": {"a": 1}}', '{"action_ref": "cli.nothing"}'
    lines = "\n".join([good, "not json", unknown, '{"colour": 1}', good])
    ended = system.executor("submit", "cli.add", "--bulk", "-", "--wait", stdin=lines)
    assert ended.exit_code == EXIT_FAILED
    assert ended.out.splitlines() == ["2 accepted (0 duplicates), 3 rejected", "2 completed"]
    assert [line.split(": ")[:2] for line in ended.err.splitlines()] == [
        ["line 2", "invalid_message"],
        ["line 3", "unknown_action"],
        ["line 4", "unknown_field"],
    ]


def test_a_bulk_submit_with_a_key_can_be_sent_again(system: CommandLines, ref: str) -> None:
    arguments = ["submit", ref, "--bulk", "-", "--idempotency-key", ref, "--json"]
    first, again = (system.executor(*arguments, stdin="{}\n{}\n").lines for _ in range(2))
    assert [answer["id"] for answer in again] == [answer["id"] for answer in first]
    assert [answer["duplicate"] for answer in again] == [True, True]


def test_a_bulk_wait_prints_the_outcome_of_every_line(system: CommandLines) -> None:
    requests = {"fail": "{}", "add": '{"a": 1}', "talk": '{"until": 5}'}
    lines = "".join(f'{{"action_ref": "cli.{ref}", "parameters": {p}}}\n' for ref, p in requests.items())
    ended = system.executor("submit", "--bulk", "-", "--wait", "--json", stdin=lines)
    assert ended.exit_code == EXIT_FAILED
    found = {end["line"]: end for end in ended.lines}
    assert [found[line]["status"] for line in (1, 2, 3)] == ["failed", "completed", 422]
    assert found[3]["code"] == "invalid_parameters"


def test_a_submission_that_does_not_fit_is_refused_and_show_says_what_fits(system: CommandLines) -> None:
    refused = system.executor("submit", "cli.add", "a=one")
    assert refused.exit_code == EXIT_FAILED
    assert "parameters.a: expected a whole number" in refused.err
    assert "executor actions show cli.add" in refused.err
    shown = system.executor("actions", "show", "cli.add").out
    assert "parameters_checked_by  code" in shown
    assert '"required": [\n    "a"\n  ]' in shown


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
    assert unknown.exit_code == EXIT_FAILED
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
    assert "for a slot" in system.executor("queue", "stats", ref).out


def test_a_resource_shows_who_holds_its_units_and_who_waits(system: CommandLines, ref: str) -> None:
    system.executor("resources", "put", ref, "--capacity", "3")
    system.apply(ref=ref, pool="empty", uses=[{"resource": ref, "units": 2}])
    holder, waiting = system.submit(ref), system.submit(ref)
    shown = system.executor("get", str(waiting)).out
    assert f"waits at resource {ref}: needs 2 units, 1 of 3 free; held by #{holder} (2); position 1" in shown
    assert f"resource {ref}" in system.executor("get", str(holder)).out.partition("GATE")[2]
    page = system.executor("resources", "queue", ref, "--json").json
    assert [each["id"] for each in page["holders"]] == [holder]
    assert [(each["id"], each["position"], each["units"]) for each in page["items"]] == [(waiting, 1, 2)]
    lines = system.executor("resources", "queue", ref).out
    assert "2, capacity 3" in lines
    assert system.executor("resources", "queue", "none").exit_code == EXIT_FAILED


def test_an_unknown_id_or_action_is_exit_code_1(system: CommandLines) -> None:
    for arguments in (["get", "999999999"], ["actions", "show", "no.such"], ["queue", "stats", "no.such"]):
        ended = system.executor(*arguments)
        assert (ended.exit_code, ended.err.split(":")[0]) == (EXIT_FAILED, "not_found")
        assert "did you mean" not in ended.err


def test_the_nearest_action_is_suggested(system: CommandLines) -> None:
    for arguments in (
        ["submit", "cli.addd"],
        ["actions", "show", "cli.addd"],
        ["actions", "pause", "cli.addd"],
    ):
        assert system.executor(*arguments).err.rstrip().endswith("; did you mean cli.add?")


def test_an_invalid_token_is_exit_code_1(system: CommandLines) -> None:
    for token, said in (("another", "does not accept the token"), ("", "requires a token")):
        ended = system.executor("list", TURNSTILE_API_TOKEN=token)
        assert (ended.exit_code, ended.err.split(":")[0]) == (EXIT_FAILED, "unauthorized")
        assert said in ended.err
        assert "TURNSTILE_API_TOKEN" in ended.err


def test_error_messages_cannot_control_the_terminal(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.fail", 'message="\\u001b[31m[bold]red"', "--wait")
    assert "\x1b" not in ended.out
    assert "\\x1b[31m[bold]red" in ended.out


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
