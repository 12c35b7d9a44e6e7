"""Commands that destroy something prompt on a terminal, and need `--yes` without one."""

from typing import Any

import pytest
from pydantic_core import from_json

from tests.integration.cli.conftest import CommandLines
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.cli import EXIT_USAGE
from turnstile.executor.cli import confirmation
from turnstile.executor.cli.client import Api, Json

DESTRUCTIVE = (
    ("dead-letters", "purge", "--all"),
    ("dead-letters", "purge", "--code", "unknown_action"),
    ("dead-letters", "purge", "42"),
    ("cancel", "--action", "a"),
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies that a command sends; each dry run finds one subject."""
    bodies: list[Any] = []

    def post(_: Api, path: str, body: bytes, *, key: str | None = None) -> Json:
        bodies.append(from_json(body))
        left = int(bodies[-1].get("dry_run", False))
        counts = {"done": 1 - left, "left": left, "refused": [], "missing": []}
        item = {"id": 7, "status": "queued", "problem": None}
        return Json(dry_run=bool(left), matched=1, changed=1, items=[item], next_cursor=None, **counts)

    monkeypatch.setattr(Api, "post", post)
    return bodies


@pytest.mark.parametrize("arguments", DESTRUCTIVE)
def test_without_a_terminal_nothing_is_requested_until_yes_is_given(
    alone: CommandLines, sent: list[Any], arguments: tuple[str, ...]
) -> None:
    refused = alone.executor(*arguments, stdin="y\n")
    assert (refused.exit_code, refused.out, sent) == (EXIT_USAGE, "", [])
    assert "add --yes" in refused.err
    assert "--dry-run" in refused.err
    assert alone.executor(*arguments, "--yes").exit_code == 0
    assert [body.get("dry_run", False) for body in sent] == [False]


@pytest.mark.parametrize("arguments", DESTRUCTIVE)
def test_a_terminal_prompts_with_what_would_be_done(
    alone: CommandLines, sent: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    refused = alone.executor(*arguments, stdin="n\n")
    assert (refused.exit_code, refused.err.endswith("aborted; nothing was changed\n")) == (EXIT_USAGE, True)
    assert "1 " in refused.err.split("?")[0]
    assert [body["dry_run"] for body in sent] == [True]
    assert alone.executor(*arguments, stdin="y\n").exit_code == 0
    assert [body.get("dry_run", False) for body in sent] == [True, True, False]


@pytest.mark.parametrize("arguments", DESTRUCTIVE)
def test_a_dry_run_asks_nothing_and_changes_nothing(
    alone: CommandLines, sent: list[Any], arguments: tuple[str, ...]
) -> None:
    shown = alone.executor(*arguments, "--dry-run")
    assert (shown.exit_code, shown.out.startswith("Would ")) == (0, True)
    assert [body["dry_run"] for body in sent] == [True]


def test_an_apply_that_prunes_is_confirmed_before_its_first_change(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[str] = []
    definition = {"ref": "old.one", "entrypoint": ["true"], "runner": "command"}

    def get(_: Api, path: str, query: Any = None, **__: Any) -> Json:
        whole = ActionDefinition.model_validate(definition).model_dump(mode="json")
        return Json(items=[Json(whole)] if path == "/actions" else [], next_cursor=None)

    def delete(_: Api, path: str, query: Any) -> Json:
        changes.append(path)
        return Json(cancelled=0)

    monkeypatch.setattr(Api, "get", get)
    monkeypatch.setattr(Api, "delete", delete)
    refused = alone.executor("actions", "apply", "-", "--prune", stdin="[]")
    assert (refused.exit_code, changes) == (EXIT_USAGE, [])
    assert "old.one" in refused.err
    assert alone.executor("actions", "apply", "-", "--prune", "--dry-run", stdin="[]").exit_code == 0
    assert changes == []
    assert alone.executor("actions", "apply", "-", "--prune", "--yes", stdin="[]").exit_code == 0
    assert changes == ["/actions/old.one"]


def test_an_apply_that_deletes_nothing_needs_no_yes(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "get", lambda *_, **__: Json(items=[], next_cursor=None))
    assert alone.executor("actions", "apply", "-", "--prune", stdin="[]").exit_code == 0


def test_a_retry_by_filter_destroys_nothing_and_needs_no_yes(alone: CommandLines, sent: list[Any]) -> None:
    assert alone.executor("retry", "--action", "a").exit_code == 0
    assert [body["dry_run"] for body in sent] == [False]
