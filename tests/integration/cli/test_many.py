"""Cancel and retry take ids or a filter; a dry run changes nothing; actions are deleted as it was said."""

import json
import secrets

from tests.integration.cli.conftest import CommandLines
from turnstile.common.command_line import EXIT_FAILED, EXIT_USAGE


def submit_many(system: CommandLines, ref: str, count: int, *arguments: str) -> list[int]:
    ended = system.executor("submit", ref, "--bulk", "-", "--json", *arguments, stdin="{}\n" * count)
    assert ended.exit_code == 0, ended.err
    return [answer["id"] for answer in ended.lines]


def statuses(system: CommandLines, ref: str) -> set[str]:
    return {item["status"] for item in system.executor("list", "--action", ref, "--json").json["items"]}


def test_a_dry_run_names_what_a_filter_means_and_changes_nothing(system: CommandLines, ref: str) -> None:
    ids = submit_many(system, ref, 3)
    would = system.executor("cancel", "--action", ref, "--dry-run")
    assert would.exit_code == 0
    assert would.out.startswith("would cancel 3 (2 queued, 1 scheduled): ")
    assert all(str(each) in would.out for each in ids)
    assert statuses(system, ref) == {"scheduled", "queued"}


def test_a_filter_is_gone_through_to_its_end(system: CommandLines, ref: str) -> None:
    submit_many(system, ref, 1002, "--metadata", "team=green")
    kept = submit_many(system, ref, 1)
    ended = system.executor("cancel", "--action", ref, "--metadata", "team=green", "--json").json
    assert (ended["matched"], ended["changed"], ended["next_cursor"]) == (1002, 1002, None)
    live = ("--status", "scheduled", "--status", "queued")
    left = system.executor("list", "--action", ref, *live, "--json").json["items"]
    assert [item["id"] for item in left] == kept
    some = system.executor("retry", "--action", ref, "--status", "cancelled", "--limit", "2")
    assert some.out.startswith("2 of 2 asked for again")
    assert "--limit is reached" in some.err


def test_a_retry_is_a_new_execution_and_the_same_key_asks_for_it_once(system: CommandLines) -> None:
    failed = system.executor("submit", "cli.fail", "--wait", "--json").json["id"]
    key = secrets.token_hex(4)
    first, again = (
        system.executor("retry", str(failed), "--idempotency-key", key, "--json").json for _ in range(2)
    )
    assert (first["id"] != failed, again["id"], again["duplicate"]) == (True, first["id"], True)
    assert first["retry_of"] == failed
    one = system.executor("retry", str(failed), "999999999")
    assert one.exit_code == EXIT_FAILED
    assert one.out.startswith(f"{failed}: again as ")
    assert one.err.startswith("999999999: not_found")


def test_what_has_not_ended_is_not_retried_and_nothing_is_meant_by_nothing(
    system: CommandLines, ref: str
) -> None:
    (waiting,) = submit_many(system, ref, 1)
    assert system.executor("retry", str(waiting)).exit_code == EXIT_FAILED
    assert system.executor("retry", "--action", ref).out == "no execution is meant\n"
    assert system.executor("retry").exit_code == EXIT_USAGE


def test_an_action_that_executions_wait_for_is_deleted_only_when_that_is_said(
    system: CommandLines, ref: str
) -> None:
    submit_many(system, ref, 2)
    assert system.executor("actions", "pause", ref).out == f"{ref}: limit 1, paused\n"
    refused = system.executor("actions", "delete", ref)
    assert refused.exit_code == EXIT_FAILED
    assert "--waiting cancel" in refused.err or "run" in refused.err
    system.executor("cancel", "--action", ref, "--status", "scheduled")
    still = system.executor("actions", "delete", ref)
    assert (still.exit_code, "--waiting cancel" in still.err) == (EXIT_FAILED, True)
    gone = system.executor("actions", "delete", ref, "--waiting", "cancel")
    assert (gone.exit_code, gone.out) == (0, f"{ref}: deleted; 1 that waited were ended\n")
    assert system.executor("actions", "show", ref).exit_code == EXIT_FAILED


def test_a_limit_and_its_change_are_told(system: CommandLines, ref: str) -> None:
    assert system.executor("actions", "limit", ref, "4").out == f"{ref}: limit 4, not paused\n"
    assert system.executor("actions", "limit", ref, "none", "--json").json["max_concurrent"] is None
    changes = system.executor("actions", "changes", ref).out
    assert "max_concurrent: 1 -> 4" in changes
    assert "max_concurrent: 4 -> none" in changes


def test_prune_is_said_shown_and_then_done(system: CommandLines, ref: str) -> None:
    items = system.executor("actions", "list", "--json").json["items"]
    fields = ("ref", "runner", "entrypoint", "max_concurrent", "concurrency_key", "timeout", "pool")
    others = [{name: item[name] for name in fields} for item in items if item["ref"] != ref]
    file = json.dumps(others)
    kept = system.executor("actions", "apply", "-", "--dry-run", stdin=file).out.splitlines()
    assert "-" not in {line[0] for line in kept}
    would = system.executor("actions", "apply", "-", "--prune", "--dry-run", stdin=file).out.splitlines()
    assert f"- {ref}" in would
    assert system.executor("actions", "show", ref).exit_code == 0
    done = system.executor("actions", "apply", "-", "--prune", "--json", stdin=file)
    assert [a["ref"] for a in done.json["actions"] if a["step"] == "delete"] == [ref]
    assert system.executor("actions", "show", ref).exit_code == EXIT_FAILED
