"""Requests that need several calls: a list stops where its limit is reached, or its search takes too long."""

import json
from typing import Any, cast

import pytest

from turnstile.executor.cli import output
from turnstile.executor.cli.client import Api, Json
from turnstile.executor.cli.output import Listing
from turnstile.executor.cli.selections import by_ids, repeat_until_done


class Pages:
    """An API whose pages are empty and cut."""

    def __init__(self) -> None:
        self.calls = 0

    def get(self, _: str, query: dict[str, Any]) -> Json:
        self.calls += 1
        assert query["cursor"] == (None if self.calls == 1 else f"c{self.calls - 1}")
        at = f"2026-01-{31 - self.calls}T00:00:00Z"
        return Json(items=[], next_cursor=f"c{self.calls}", searched_until=at)


def test_a_search_that_finds_nothing_stops_and_says_how_far_it_went(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "CUT_PAGES_MAX", 3)
    pages = Pages()
    listing = Listing(path="/executions", columns={}, empty="No executions")
    listing.print_page(cast("Api", pages), {"error": "no such text"}, limit=50, as_json=False)
    shown = capsys.readouterr()
    assert (shown.out, pages.calls) == ("No executions\n", 3)
    warnings = shown.err
    assert "created since 2026-01-28T00:00:00Z" in warnings
    assert "more available: --cursor c3" in warnings
    assert "--limit" not in warnings


class Letters:
    """Five dead letters, of which the first is refused; a call handles at most two."""

    def __init__(self) -> None:
        self.ids = [1, 2, 3, 4, 5]

    def post(self, _: str, body: bytes) -> Json:
        chosen = self.ids[: min(json.loads(body).get("limit", 2), 2)]
        beyond = len(self.ids) - len(chosen)
        done = [each for each in chosen if each != 1]
        self.ids = [each for each in self.ids if each not in done]
        refused = [{"id": "1", "reason": "cut"}] if 1 in chosen else []
        return Json(done=len(done), refused=refused, missing=[], left=beyond)


def test_what_is_refused_keeps_nothing_behind_it_from_being_handled() -> None:
    letters = Letters()
    total = repeat_until_done(cast("Api", letters), "/dead-letters/replay", {"all": True}, batch_max=2)
    assert total == {"done": 4, "refused": [{"id": "1", "reason": "cut"}], "missing": [], "left": 0}
    assert letters.ids == [1]


def test_more_names_than_a_call_takes_are_sent_in_several_calls() -> None:
    assert [len(each["ids"]) for each in by_ids(range(2001))] == [1000, 1000, 1]
