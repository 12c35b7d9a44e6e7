"""`executor cancel` and `executor retry`: by ids or by filter; a dry run changes nothing."""

import pytest
from pydantic_core import from_json

from tests.integration.cli.conftest import CommandLines
from turnstile.common.cli import EXIT_FAILED
from turnstile.executor.cli import confirmation
from turnstile.executor.cli.client import Api, Json


def submit_many(system: CommandLines, ref: str, count: int, *arguments: str) -> list[int]:
    ended = system.executor("submit", ref, "--bulk", "-", "--json", *arguments, stdin="{}\n" * count)
    assert ended.exit_code == 0, ended.err
    return [answer["id"] for answer in ended.lines]


def test_cancel_by_id_cancels_what_it_can_and_names_the_others(system: CommandLines, ref: str) -> None:
    # None of them is at a worker.
    system.apply(ref=ref, max_concurrent=0, pool="empty")
    first, second = submit_many(system, ref, 2)
    ended = system.executor("cancel", str(first), "999999999", str(second), "--reason", "not needed")
    assert (ended.exit_code, ended.out.splitlines()) == (
        EXIT_FAILED,
        [f"Cancelled {first}", f"Cancelled {second}"],
    )
    assert ended.err.startswith("999999999: not_found")
    again = system.executor("cancel", str(first))
    assert (again.exit_code, "already_terminal" in again.err) == (EXIT_FAILED, True)


def test_the_confirmation_counts_what_the_same_key_will_change(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def post(_: Api, path: str, body: bytes, *, key: str | None) -> Json:
        calls.append((path, from_json(body)["dry_run"], key))
        item = {"id": 7, "status": "failed", "problem": None}
        return Json(dry_run=calls[-1][1], matched=1, changed=1, items=[item], next_cursor=None)

    monkeypatch.setattr(Api, "post", post)
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    arguments = ["retry", "--action", "a", "--idempotency-key", "mine"]
    ended = alone.executor(*arguments, stdin="y\n")
    assert calls == [("/executions/retry", True, "mine"), ("/executions/retry", False, "mine")]
    assert "Retry 1 executions (1 failed)?" in ended.err
    assert alone.executor(*arguments, stdin="n\n").err.endswith("aborted; nothing was changed\n")
    assert len(calls) == 3


def test_a_dry_run_of_ids_says_what_is_left_out_and_changes_nothing(system: CommandLines, ref: str) -> None:
    failed = system.executor("submit", "cli.fail", "--wait", "--json").json["id"]
    (waiting,) = submit_many(system, ref, 1)
    planned = system.executor("retry", str(failed), str(waiting), "--dry-run")
    assert planned.out == f"Would retry 1 (1 failed): {failed}\n"
    assert "left out: 1 " in planned.err
    assert "(has not ended)" in planned.err
    nothing = system.executor("retry", str(waiting), "--dry-run")
    assert (nothing.exit_code, nothing.out) == (0, "Nothing to retry\n")
    seen = system.executor(
        "list", "--action", "cli.fail", "--error", "E", "--completed-after", "2026-01-01T00:00:00Z"
    )
    assert str(failed) in seen.out
