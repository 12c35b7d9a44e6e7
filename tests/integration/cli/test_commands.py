"""The client commands against a real executor and a real worker."""

import json
from pathlib import Path

import httpx
import pytest

from tests.integration.cli.conftest import CommandLines, Processes
from turnstile.common.command_line import EXIT_FAILED, EXIT_TIMED_OUT, EXIT_USAGE


def submitters_name_keys(system: CommandLines, ref: str) -> None:
    definition = [{"ref": ref, "max_concurrent": 1, "pool": "nobody", "submitter_keys": True}]
    assert system.executor("actions", "apply", "-", stdin=json.dumps(definition)).exit_code == 0


def submitted(system: CommandLines, ref: str, *arguments: str) -> int:
    ended = system.executor("submit", ref, *arguments, "--json")
    assert ended.exit_code == 0, ended.err
    return int(ended.json["id"])


def test_submit_and_wait_shows_the_result_and_exits_with_0(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.add", "a=4", "b=3", "--wait", "--json")
    assert (ended.exit_code, ended.json["status"], ended.json["result"]) == (0, "completed", 7)


def test_what_does_not_complete_is_exit_code_1_and_says_why(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.fail", "message=no paper", "--wait")
    assert ended.exit_code == EXIT_FAILED
    assert "PermanentError: no paper" in ended.out


def test_what_is_refused_is_exit_code_1_and_names_the_field(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.nothing")
    assert (ended.exit_code, ended.err.split(": ")[:2]) == (EXIT_FAILED, ["unknown_action", "action_ref"])


def test_what_the_api_would_refuse_in_any_case_is_exit_code_2(system: CommandLines) -> None:
    for wrong in (["not a ref"], ["cli.add", "--callback-url", "here"], []):
        assert system.executor("submit", *wrong).exit_code == EXIT_USAGE


def test_a_wait_that_is_too_long_is_exit_code_4_and_ends_nothing(system: CommandLines, ref: str) -> None:
    ended = system.executor("submit", ref, "--wait", "--wait-timeout", "200ms")
    assert ended.exit_code == EXIT_TIMED_OUT
    (left,) = system.executor("list", "--action", ref, "--json").json["items"]
    assert left["status"] == "scheduled"
    assert f"'executor get {left['id']}'" in ended.err


def test_everything_that_can_be_asked_for_arrives(system: CommandLines, ref: str) -> None:
    submitters_name_keys(system, ref)
    options = [
        "--parameters",
        '{"a": 1, "b": 2}',
        "--metadata",
        "team=green",
        "--idempotency-key",
        f"{ref}:1",
    ]
    more = ["--concurrency-key", "k", "--run-at", "2100-01-01T00:00:00Z", "--ttl", "1h", "--timeout", "5m"]
    execution_id = submitted(system, ref, "b=3", *options, *more)
    found = system.executor("get", str(execution_id), "--json").json
    assert (found["parameters"], found["metadata"]) == ({"a": 1, "b": 3}, {"team": "green"})
    assert (found["status"], found["concurrency_key"]) == ("delayed", "k")
    assert found["run_at"] == "2100-01-01T00:00:00Z"


def test_the_same_key_is_the_same_execution(system: CommandLines, ref: str) -> None:
    first, again = (system.executor("submit", ref, "--idempotency-key", ref) for _ in range(2))
    assert first.out.split(":")[0] == again.out.split(":")[0]
    assert "submitted before under this key" in again.out


def test_get_says_why_it_waits(system: CommandLines, ref: str) -> None:
    holder, waiting = submitted(system, ref), submitted(system, ref)
    shown = system.executor("get", str(waiting)).out
    assert f"position 1 of 1 in {ref}; 1 of 1 slots is held by #{holder}" in shown
    assert "no live worker of pool nobody serves it" in system.executor("get", str(holder)).out


def test_list_goes_on_over_pages_and_says_when_there_is_more(system: CommandLines, ref: str) -> None:
    bodies = "\n".join(json.dumps({"parameters": {"number": number}}) for number in range(5))
    assert system.executor("submit", ref, "--bulk", "-", stdin=bodies).exit_code == 0
    first = system.executor("list", "--action", ref, "--limit", "3", "--json").json
    rest = system.executor("list", "--action", ref, "--cursor", first["next_cursor"], "--json").json
    numbers = [item["parameters"]["number"] for item in [*first["items"], *rest["items"]]]
    assert numbers == [4, 3, 2, 1, 0]
    assert rest["next_cursor"] is None
    assert "there are more" in system.executor("list", "--action", ref, "--limit", "3").err
    queued = system.executor("list", "--action", ref, "--status", "queued", "--json").json["items"]
    assert len(queued) == 4


def test_cancel_ends_each_that_can_be_ended_and_names_the_others(system: CommandLines, ref: str) -> None:
    first, second = submitted(system, ref), submitted(system, ref)
    ended = system.executor("cancel", str(first), "999999999", str(second), "--reason", "not needed")
    assert (ended.exit_code, ended.out.splitlines()) == (
        EXIT_FAILED,
        [f"{first}: cancelled", f"{second}: cancelled"],
    )
    assert ended.err.startswith("999999999: not_found")
    again = system.executor("cancel", str(first))
    assert (again.exit_code, "already_terminal" in again.err) == (EXIT_FAILED, True)


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


def test_a_line_that_is_refused_is_named_and_stops_no_other(system: CommandLines) -> None:
    good, unknown = '{"parameters": {"a": 1}}', '{"action_ref": "cli.nothing"}'
    lines = "\n".join([good, "not json", unknown, '{"colour": 1}', good])
    ended = system.executor("submit", "cli.add", "--bulk", "-", "--wait", stdin=lines)
    assert ended.exit_code == EXIT_FAILED
    assert ended.out.splitlines() == ["2 accepted, 0 of them submitted before, 3 refused", "2 completed"]
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


def test_a_bulk_wait_tells_of_every_line_how_it_ended(system: CommandLines) -> None:
    lines = "".join(f'{{"action_ref": "cli.{ref}", "parameters": {{}}}}\n' for ref in ("fail", "add", "fail"))
    ended = system.executor("submit", "--bulk", "-", "--wait", "--json", stdin=lines)
    assert ended.exit_code == EXIT_FAILED
    assert {end["line"]: end["status"] for end in ended.lines} == dict.fromkeys((1, 2, 3), "failed")


def test_apply_shows_what_it_would_do_and_does_it_once(system: CommandLines, ref: str) -> None:
    file = json.dumps([{"ref": ref, "max_concurrent": 3}, {"ref": f"{ref}.new", "timeout": "5m"}])
    would = system.executor("actions", "apply", "-", "--dry-run", stdin=file)
    assert would.out.splitlines() == [
        f"~ {ref}  max_concurrent: 1 -> 3, pool: nobody -> default",
        f"+ {ref}.new  timeout: 5m",
    ]
    assert system.executor("actions", "show", ref, "--json").json["max_concurrent"] == 1
    done = system.executor("actions", "apply", "-", "--json", stdin=file).json
    assert [action["step"] for action in done["actions"]] == ["change", "create"]
    assert system.executor("actions", "show", ref, "--json").json["max_concurrent"] == 3
    again = system.executor("actions", "apply", "-", stdin=file)
    assert again.out.splitlines() == [f"= {ref}", f"= {ref}.new"]


def test_a_file_with_one_wrong_entry_is_not_applied_at_all(system: CommandLines, ref: str) -> None:
    file = json.dumps([{"ref": ref, "max_concurrent": 9}, {"ref": "x", "runner": "command"}])
    ended = system.executor("actions", "apply", "-", stdin=file)
    assert ended.exit_code == EXIT_USAGE
    assert ended.err.startswith("stdin: entry 2 (x): ")
    assert system.executor("actions", "show", ref, "--json").json["max_concurrent"] == 1


def test_actions_and_workers_and_queues_are_shown(system: CommandLines, ref: str) -> None:
    submitters_name_keys(system, ref)
    submitted(system, ref), submitted(system, ref), submitted(system, ref, "--concurrency-key", "k")
    assert ref in system.executor("actions", "list").out
    (worker,) = system.executor("workers", "list", "--state", "live", "--json").json["items"]
    assert worker["id"] in system.executor("workers", "list").out
    stats = system.executor("queue", "stats", ref, "--json").json
    assert (stats["queue_length"], stats["active_count"], stats["waiting"]["limit"]) == (1, 2, 1)
    assert "for a slot" in system.executor("queue", "stats", ref).out


def test_what_is_not_there_is_exit_code_1(system: CommandLines) -> None:
    for arguments in (["get", "999999999"], ["actions", "show", "no.such"], ["queue", "stats", "no.such"]):
        ended = system.executor(*arguments)
        assert (ended.exit_code, ended.err.split(":")[0]) == (EXIT_FAILED, "not_found")


def test_a_wrong_token_is_exit_code_1_and_says_what_is_wanted(system: CommandLines) -> None:
    ended = system.executor("list", TURNSTILE_API_TOKEN="another")
    assert (ended.exit_code, ended.err.split(":")[0]) == (EXIT_FAILED, "unauthorized")


def test_what_a_stranger_sent_cannot_drive_a_terminal(system: CommandLines) -> None:
    ended = system.executor("submit", "cli.fail", 'message="\\u001b[31m[bold]red"', "--wait")
    assert "\x1b" not in ended.out
    assert "\\x1b[31m[bold]red" in ended.out


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_the_worker_answers_for_its_health(processes: Processes, path: str) -> None:
    answer = httpx.get(processes.worker_url + path, trust_env=False, timeout=5)
    assert answer.status_code == 200
    assert answer.json()["status"] in ("alive", "ready")
