"""Commands that destroy something prompt on a terminal, and need `--yes` without one."""

import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest
from pydantic_core import from_json
from typer.main import get_command

from tests.integration.cli.conftest import CommandLines
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli import app, confirmation
from turnstile.executor.cli.client import Api, Json
from turnstile.executor.cli.selections import Change

BY_NAME = (
    ("actions", "delete", "a"),
    ("actions", "keys", "delete", "a", "7"),
    ("resources", "delete", "cad"),
    ("tokens", "revoke", "7"),
    ("workers", "drain", "w-1"),
)
"""What they change is named."""
WORKER = Json(id="w-1", name="render-1", state="live", running=2)
TOKENS = (
    Json(id=7, name="ci", role="admin", state="valid"),
    Json(id=8, name="old", role="admin", state="revoked"),
)
DESTROYING = re.compile(r"/(drain|replay|purge)$")
"""Paths of the API."""
BESIDE_THE_API = {"setup-permissions", "restore-check"}
DESTRUCTIVE = (
    ("dead-letters", "replay", "--all"),
    ("dead-letters", "replay", "--code", "unknown_action"),
    ("dead-letters", "purge", "--all"),
    ("dead-letters", "purge", "--code", "unknown_action"),
    ("dead-letters", "purge", "42"),
    ("webhooks", "replay", "--all"),
    ("cancel", "--action", "a"),
)
ALL_OR_BY_CODE = (*DESTRUCTIVE[:4], DESTRUCTIVE[5])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies that a command sends; each dry run finds one subject."""
    bodies: list[Any] = []

    def post(_: Api, path: str, body: bytes, *, key: str | None = None) -> Json:
        bodies.append(from_json(body))
        left = int(bodies[-1].get("dry_run", False))
        counts = {"done": 1 - left, "left": left, "refused": [], "missing": []}
        item = {"id": 7, "status": "queued", "problem": None}
        counts |= {"left_out": [], "left_out_is_partial": False}
        return Json(dry_run=bool(left), matched=1, changed=1, items=[item], next_cursor=None, **counts)

    monkeypatch.setattr(Api, "post", post)
    return bodies


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the changes that a command requests; what it reads is there."""
    paths: list[str] = []

    def get(_: Api, path: str, *__: Any, **___: Any) -> Json:
        settings = {"has_limit": True, "max_concurrent": 5, "weight": 1}
        known = {"users": 0, "held": 0, "waiting": 0, **settings}
        pages = {"/tokens": Json(items=TOKENS, next_cursor=None), "/workers/w-1": WORKER}
        return {**pages, "/whoami": Json(id=7, role="admin")}.get(path, Json(known))

    def change(_: Api, path: str, body: Any = b"{}", **__: Any) -> Json:
        if isinstance(body, bytes) and from_json(body).get("dry_run"):
            return Json(matched=0, changed=0, items=[], next_cursor=None)
        paths.append(path)
        counts = {"done": 1, "left": 0, "refused": [], "missing": [], "cancelled": 0}
        drain = {"state": "draining", "running": 0, "draining_count": 0, "draining_until": None}
        return Json(name="ci", **counts, **drain)

    monkeypatch.setattr(Api, "get", get)
    monkeypatch.setattr(Api, "delete", change)
    monkeypatch.setattr(Api, "post", change)
    return paths


@pytest.mark.parametrize("arguments", BY_NAME)
def test_what_is_named_is_deleted_revoked_or_drained_only_after_agreement(
    alone: CommandLines,
    requested: list[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    shown = alone.executor(*arguments, "--dry-run")
    assert (shown.exit_code, shown.out.startswith("Would "), arguments[-1] in shown.out) == (0, True, True)
    (planned,) = alone.executor(*arguments, "--dry-run", "--json").lines
    assert planned["dry_run"] is True
    refused = alone.executor(*arguments, stdin="y\n")
    assert (refused.exit_code, refused.out, requested) == (ExitCode.USAGE, "", [])
    assert "add --yes, or --dry-run to see what it would do; nothing was changed" in refused.err
    assert alone.executor(*arguments, "--yes").exit_code == 0
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    aborted = alone.executor(*arguments, stdin="n\n")
    assert (aborted.exit_code, aborted.err.endswith("aborted; nothing was changed\n")) == (
        ExitCode.USAGE,
        True,
    )
    assert arguments[-1].strip("-") in aborted.err.split("?")[0]
    assert alone.executor(*arguments, stdin="y\n").exit_code == 0
    assert len(requested) == 2


def test_a_drain_says_what_runs(
    alone: CommandLines, requested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    asked = alone.executor("workers", "drain", "w-1", stdin="n\n").err
    assert asked.startswith("Drain the workers w-1 (render-1, 2 attempts running)?")
    planned = alone.executor("workers", "drain", "w-1", "--dry-run")
    assert planned.out == "Would drain w-1 (render-1, 2 attempts running)\n"
    monkeypatch.setitem(WORKER, "state", "stopped")
    planned = alone.executor("workers", "drain", "w-1", "--dry-run")
    assert planned.out.startswith("Would not drain w-1: it is stopped")
    monkeypatch.setitem(WORKER, "id", "w-2")
    named = alone.executor("workers", "drain", "w-1", "--dry-run")
    assert (named.exit_code, named.err) == (
        ExitCode.FAILED,
        "w-1: not_found: worker_id: it is the name of the worker w-2; give the id\n",
    )
    assert requested == []


def test_a_revocation_says_whose_the_tokens_are_and_what_is_lost(
    alone: CommandLines, requested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    own, last, question = alone.executor("tokens", "revoke", "7", "8", "9", stdin="n\n").err.splitlines()[:3]
    assert own.startswith("warning: 7 is the token that this command uses")
    assert "set TURNSTILE_API_TOKEN to another one" in own
    assert "create one first: executor tokens create NAME --role admin; afterwards" in last
    assert "--direct" in last
    assert question.startswith(
        "Revoke the tokens 7 of ci (admin), 8 of old (admin, revoked), 9 (no such token)?"
    )
    planned = alone.executor("tokens", "revoke", "8", "9", "--dry-run")
    assert planned.out == "Would change nothing: 8 of old (admin, revoked)\n"
    assert (planned.exit_code, planned.err) == (
        ExitCode.FAILED,
        "9: not_found: token_id: there is no token 9\n",
    )
    assert requested == []


def test_every_command_that_destroys_something_has_the_options_yes_and_dry_run() -> None:
    commands = dict(_commands(get_command(app)))
    destructive = {path for path, command in commands.items() if _destroys(command)} | BESIDE_THE_API
    # Each command is found, or this test proves nothing.
    tried = [" ".join(arguments) for arguments in (*BY_NAME, *DESTRUCTIVE) if arguments[0] != "cancel"]
    assert all(any(each.startswith(path) for path in destructive) for each in tried)
    for option in ("--yes", "--dry-run"):
        has_it = {path for path in commands if any(option in each.opts for each in commands[path].params)}
        assert destructive - has_it == set(), option


def _commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        # Commands are loaded on demand.
        loaded = command.load() if hasattr(command, "load") else command
        inner = f"{path} {name}".strip()
        if hasattr(loaded, "commands"):
            yield from _commands(loaded, inner)
        else:
            yield inner, loaded


def _destroys(command: Any) -> bool:
    return any(_is_destructive(code) for code in _codes(inspect.unwrap(command.callback), set()))


def _is_destructive(code: CodeType | Change) -> bool:
    if isinstance(code, Change):
        return bool(DESTROYING.search(code.path))
    words = [each for each in code.co_consts if isinstance(each, str)]
    return "delete" in code.co_names or any(DESTROYING.search(word) for word in words)


def _codes(function: Any, seen: set[CodeType]) -> Iterator[CodeType | Change]:
    """Yield the code of a function, and of the functions and changes of its module that it calls."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        yield code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        called = [function.__globals__.get(name) for name in code.co_names]
        yield from (each for each in called if isinstance(each, Change))
        waiting += [each.__code__ for each in called if isinstance(each, FunctionType)]


@pytest.mark.parametrize("arguments", DESTRUCTIVE)
def test_nothing_is_changed_before_yes_or_the_agreement_to_what_would_be_done(
    alone: CommandLines, sent: list[Any], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    refused = alone.executor(*arguments, stdin="y\n")
    assert (refused.exit_code, refused.out, sent) == (ExitCode.USAGE, "", [])
    assert "add --yes" in refused.err
    assert "--dry-run" in refused.err
    shown = alone.executor(*arguments, "--dry-run")
    assert (shown.exit_code, shown.out.startswith("Would ")) == (0, True)
    assert alone.executor(*arguments, "--yes").exit_code == 0
    assert [body.get("dry_run", False) for body in sent] == [True, False]
    sent.clear()
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    refused = alone.executor(*arguments, stdin="n\n")
    assert (refused.exit_code, refused.err.endswith("aborted; nothing was changed\n")) == (
        ExitCode.USAGE,
        True,
    )
    assert "1 " in refused.err.split("?")[0]
    assert alone.executor(*arguments, stdin="y\n").exit_code == 0
    assert [body.get("dry_run", False) for body in sent] == [True, True, False]


@pytest.mark.parametrize("arguments", ALL_OR_BY_CODE)
def test_what_arrives_after_the_question_is_left_alone(
    alone: CommandLines, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    bodies: list[Any] = []
    matched = 2

    def post(_: Api, path: str, body: bytes) -> Json:
        bodies.append(from_json(body))
        done = 0 if bodies[-1].get("dry_run") else bodies[-1].get("limit", 5)
        return Json(done=done, left=matched if not done else 3, refused=[], missing=[])

    monkeypatch.setattr(Api, "post", post)
    monkeypatch.setattr(confirmation, "can_prompt", lambda: True)
    ended = alone.executor(*arguments, stdin="y\n")
    assert [(body.get("dry_run", False), body.get("limit")) for body in bodies] == [(True, None), (False, 2)]
    assert (ended.exit_code, ended.out.splitlines()[-1].split()[1]) == (0, "2")
    matched = 0
    ended = alone.executor(*arguments)
    assert (ended.exit_code, ended.out.splitlines()[-1].split()[1]) == (0, "0")
    assert [body.get("dry_run", False) for body in bodies[2:]] == [True]


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
    assert (refused.exit_code, changes) == (ExitCode.USAGE, [])
    assert "old.one" in refused.err
    assert alone.executor("actions", "apply", "-", "--prune", "--dry-run", stdin="[]").exit_code == 0
    assert changes == []
    assert alone.executor("actions", "apply", "-", "--prune", "--yes", stdin="[]").exit_code == 0
    assert changes == ["/actions/old.one"]
    # One that deletes nothing needs no --yes.
    monkeypatch.setattr(Api, "get", lambda *_, **__: Json(items=[], next_cursor=None))
    assert alone.executor("actions", "apply", "-", "--prune", stdin="[]").exit_code == 0


def test_a_retry_by_filter_destroys_nothing_and_needs_no_yes(alone: CommandLines, sent: list[Any]) -> None:
    assert alone.executor("retry", "--action", "a").exit_code == 0
    assert [body["dry_run"] for body in sent] == [False]
