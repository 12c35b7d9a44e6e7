"""Requests that need several calls: a list stops where its limit is reached, or its search takes too long."""

from typing import Any, cast

import pytest

from turnstile.executor.cli import pagination
from turnstile.executor.cli.client import Api, Json
from turnstile.executor.cli.pagination import print_page, read_pages


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
    monkeypatch.setattr(pagination, "CUT_PAGES_MAX", 3)
    pages = Pages()
    found = read_pages(cast("Api", pages), "/executions", {"error": "no such text"}, limit=50)
    assert (found, pages.calls) == (([], "c3"), 3)
    print_page(found, {}, empty="No executions", limit=50, as_json=False)
    warnings = capsys.readouterr().err
    assert "created since 2026-01-28T00:00:00Z" in warnings
    assert "more available: --cursor c3" in warnings
    assert "--limit" not in warnings
