"""What a key does to what is seen, and how it is drawn."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from turnstile.executor.cli.connection import Json
from turnstile.executor.cli.top.keyboard import named
from turnstile.executor.cli.top.picture import picture
from turnstile.executor.cli.top.view import Sort, View, Wish, after_change, after_key, name_of, stepped


def queue(ref: str, **fields: Any) -> Json:
    usual: dict[str, Any] = {
        "concurrency_key": None,
        "pool": "default",
        "max_concurrent": 2,
        "active_count": 2,
        "queue_length": 5,
        "oldest_enqueued_at": "2026-11-21T07:30:00Z",
        "paused": False,
        "served": True,
        "enqueued_per_second": None,
        "completed_per_second": 1.5,
    }
    return Json({"action_ref": ref, **usual, **fields})


def worker(number: int) -> Json:
    return Json(id=f"w{number}", name="n", state="live", running=1, concurrency=4, pools=["default"])


def view(*queues: Json, **fields: Any) -> View:
    given: dict[str, Any] = {"queues": queues, "queues_total": len(queues), "read_at": "2026-11-21T07:31:30Z"}
    return View(**(given | fields))


def drawn(seen: View, *, height: int | None = 24) -> str:
    console = Console(file=StringIO(), width=100, height=height or 500)
    console.print(picture(seen, height=height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_keys_select_a_queue_and_stay_in_the_list() -> None:
    seen = view(queue("a"), queue("b"), queue("c"))
    rows = []
    for key in ("j", "down", "down", "k", "home", "up", "end"):
        seen, wish = after_key(seen, key)
        assert wish is None
        rows.append(seen.place)
    assert rows == [1, 2, 2, 1, 0, 0, 2]


def test_the_selection_stays_with_its_queue_when_the_rows_move() -> None:
    seen, _ = after_key(view(queue("a"), queue("b")), "j")
    moved = view(queue("b"), queue("a"), selected=seen.selected)
    assert moved.chosen is not None
    assert name_of(moved.chosen).action_ref == "b"


@pytest.mark.parametrize(
    ("key", "wish"),
    [
        ("p", Wish(ref="a", verb="pause")),
        ("r", Wish(ref="a", verb="resume")),
        ("+", Wish(ref="a", verb="limit", step=1)),
        ("-", Wish(ref="a", verb="limit", step=-1)),
        ("x", None),
    ],
)
def test_a_key_asks_for_a_change_of_the_selected_action(key: str, wish: Wish | None) -> None:
    assert after_key(view(queue("a")), key)[1] == wish


def test_no_limit_goes_below_0_and_none_is_made_up_where_there_is_none() -> None:
    assert [stepped(limit, step) for limit, step in ((1, 1), (1, -1), (0, -1), (None, 1))] == [
        2,
        0,
        None,
        None,
    ]


def test_a_change_is_seen_at_once_in_all_queues_of_the_action() -> None:
    seen = view(queue("a", concurrency_key="k"), queue("a"), queue("b"))
    seen = after_change(seen, Json(ref="a", max_concurrent=7, paused=True))
    assert [(each["max_concurrent"], each["paused"]) for each in seen.queues] == [
        (7, True),
        (7, True),
        (2, False),
    ]


def test_without_queues_every_key_is_harmless() -> None:
    for key in "jkpr+-":
        assert after_key(view(), key) == (view(), None)
    assert "no queues" in drawn(view())


def test_s_sorts_otherwise_and_q_leaves() -> None:
    seen, _ = after_key(view(), "s")
    assert seen.sort is Sort.OLDEST
    assert after_key(view(), "q")[0].is_left


def test_what_a_terminal_sends_is_named() -> None:
    assert named(b"j\x1b[A\x1b[Bq\x1b") == ["j", "up", "down", "q", "escape"]


def test_a_queue_shows_its_slots_its_line_its_rates_and_what_is_wrong() -> None:
    shown = drawn(view(queue("a"), queue("b", paused=True, max_concurrent=None), queue("c", served=False)))
    for text in ("██████████ 2 of 2", "1m30s", "1.5", "2, no limit", "paused", "no worker serves default"):
        assert text in shown


def test_a_screen_is_never_longer_than_the_terminal() -> None:
    seen = view(*(queue(f"a{number}") for number in range(300)), workers=[worker(n) for n in range(90)])
    for height in (10, 24, 60):
        assert len(drawn(seen, height=height).splitlines()) <= height
    assert "and 2" in drawn(seen)
    last, _ = after_key(seen, "end")
    assert "> a299" in " ".join(drawn(last).split())


def test_what_a_stranger_named_cannot_drive_the_terminal() -> None:
    shown = drawn(view(queue("a", concurrency_key="\x1b[31m[bold]k")))
    assert "\x1b" not in shown
    assert "\\x1b[31m[bold]k" in shown
