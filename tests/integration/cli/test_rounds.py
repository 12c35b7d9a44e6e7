"""What a filter names is counted and asked about before it is changed."""

import sys
from typing import Any

import pytest
import typer
from pydantic_core import from_json

from turnstile.executor.cli import rounds
from turnstile.executor.cli.connection import Api, Json


def test_what_is_asked_about_is_what_the_same_key_would_still_do(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, questions = [], []

    def post(_: Api, path: str, body: bytes, *, key: str | None) -> Json:
        calls.append((path, from_json(body)["dry_run"], key))
        item = {"id": 7, "status": "failed", "problem": None}
        return Json(dry_run=calls[-1][1], matched=1, changed=1, items=[item], next_cursor=None)

    def confirm(question: str, **_: Any) -> bool:
        questions.append(question)
        return True

    monkeypatch.setattr(Api, "post", post)
    monkeypatch.setattr(typer, "confirm", confirm)
    monkeypatch.setattr(rounds, "can_be_asked", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rounds.for_all(
        Api("http://127.0.0.1:1", ""),
        "retry",
        {"action_ref": "a"},
        key="mine",
        dry_run=False,
        limit=None,
        yes=False,
        as_json=False,
    )
    assert calls == [("/executions/retry", True, "mine"), ("/executions/retry", False, "mine")]
    assert questions == ["retry 1 executions (1 failed)?"]
