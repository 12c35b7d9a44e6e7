"""What a key of `executor top` does, and how the screen is drawn."""

import json
import re
from dataclasses import replace
from io import StringIO
from typing import Any, cast

from rich.console import Console

from turnstile.executor.cli.client import Api, ApiRefused, Json
from turnstile.executor.cli.top import apply_change, key_names
from turnstile.executor.cli.top_view import (
    QueueChange,
    Sort,
    View,
    after_change,
    after_key,
    draw,
    format_share,
    name_of,
    stepped,
)


def queue(ref: str, **fields: Any) -> Json:
    usual: dict[str, Any] = {
        "concurrency_key": None, "pool": "default", "max_concurrent": 2, "active_count": 2, "queue_length": 5,
        "oldest_enqueued_at": "2026-11-21T07:30:00Z", "paused": False, "served": True,
        "enqueued_per_second": None, "completed_per_second": 1.5,
    }  # fmt: skip
    return Json({"action_ref": ref, **usual, **fields})


def worker(number: int, **fields: Any) -> Json:
    usual = {"name": "n", "state": "live", "running": 1, "concurrency": 4, "not_ready": None}
    return Json({"id": f"w{number}", "pools": ["default"], **usual, **fields})


def view(*queues: Json, **fields: Any) -> View:
    given: dict[str, Any] = {"queues": queues, "queues_total": len(queues), "read_at": "2026-11-21T07:31:30Z"}
    return View(**(given | fields))


def drawn(seen: View, *, height: int | None = 24) -> str:
    console = Console(file=StringIO(), width=100, height=height or 500)
    console.print(draw(seen, height=height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_live_worker_that_can_start_nothing_is_not_ready() -> None:
    reason = "broker: refused"
    seen = view(
        workers=[worker(1), worker(2, not_ready=reason), worker(3, not_ready=reason, state="overdue")]
    )
    states = re.findall(r"^w\d +n +(.*?)  ", drawn(seen), re.MULTILINE)
    assert states == ["live", "not ready", "overdue"]


def test_keys_select_a_queue_and_the_selection_follows_it() -> None:
    seen = view(queue("a"), queue("b"), queue("c"))
    rows = []
    for key in key_names(b"j\x1b[B\x1b[Bk\x1b[H\x1b[A\x1b[Fk"):
        seen, change = after_key(seen, key)
        assert change is None
        rows.append(seen.row)
    assert rows == [1, 2, 2, 1, 0, 0, 2, 1]
    moved = view(queue("b"), queue("a"), selected=seen.selected)
    assert moved.chosen is not None
    assert name_of(moved.chosen).action_ref == "b"


def test_keys_change_the_order_and_quit_and_are_harmless_without_queues() -> None:
    assert after_key(view(), "s")[0].sort is Sort.OLDEST
    assert after_key(view(), "q")[0].is_closed
    assert after_key(view(), "escape")[0].is_closed
    for key in "jkpr+-":
        assert after_key(view(), key) == (view(), None)
    assert "No queues" in drawn(view())


def test_a_limit_is_not_stepped_below_0_and_no_limit_stays_none() -> None:
    steps = ((1, 1), (1, -1), (0, -1), (None, 1))
    assert [stepped(limit, step) for limit, step in steps] == [2, 0, None, None]


def test_a_change_is_shown_at_once_in_all_queues_of_the_action() -> None:
    seen = view(queue("a", concurrency_key="k"), queue("a"), queue("b"))
    seen = after_change(seen, Json(ref="a", max_concurrent=7, paused=True))
    shown = [(each["max_concurrent"], each["paused"]) for each in seen.queues]
    assert shown == [(7, True), (7, True), (2, False)]


def test_a_queue_shows_slots_length_rates_and_problems() -> None:
    shown = drawn(view(queue("a"), queue("b", paused=True, max_concurrent=None), queue("c", served=False)))
    for text in ("██████████ 2 of 2", "1m30s", "1.5", "2, no limit", "paused", "no worker serves default"):
        assert text in shown
    assert "3 queues by waiting" in shown
    assert "1 queue by waiting" in drawn(view(queue("a")))


def test_what_does_not_work_is_shown_above_the_queues() -> None:
    for height in (24, None):
        shown = drawn(view(queue("a"), degraded={"broker": "blocked: memory alarm"}), height=height)
        assert "Does not work: broker: blocked: memory alarm" in shown.splitlines()[1]


def test_a_pause_is_confirmed_before_it_is_requested() -> None:
    question, change = after_key(view(queue("a")), "p")
    assert (question.message[:8], change) == ("Pause a?", None)
    dropped, change = after_key(question, "n")
    assert (dropped.unconfirmed, dropped.message, change) == (None, "", None)
    confirmed, change = after_key(question, "y")
    assert (confirmed.unconfirmed, change) == (None, QueueChange(ref="a", verb="pause"))


class Changed:
    """An API whose action was changed after it was read."""

    def get_tagged(self, _: str, *, timeout_seconds: float) -> tuple[Json, str]:
        assert timeout_seconds
        return Json(ref="a", max_concurrent=2, paused=False), '"first"'

    def patch(self, _: str, body: bytes, *, if_match: str | None) -> Json:
        assert (json.loads(body), if_match) == ({"max_concurrent": 3}, '"first"')
        raise ApiRefused({"code": "precondition_failed"})


def test_a_limit_that_was_changed_meanwhile_is_not_overwritten() -> None:
    change = QueueChange(ref="a", verb="limit", step=1)
    seen = apply_change(cast("Api", Changed()), view(queue("a")), change)
    assert "a: another operator has changed it" in seen.message


def test_a_screen_is_never_longer_than_the_terminal() -> None:
    seen = view(*(queue(f"a{number}") for number in range(300)), workers=[worker(n) for n in range(90)])
    seen = replace(seen, degraded={f"pool {n}": "unusable" for n in range(9)})
    for height in (10, 24, 60):
        assert len(drawn(seen, height=height).splitlines()) <= height
    assert "and 2" in drawn(seen)
    last, _ = after_key(seen, "end")
    assert "> a299" in " ".join(drawn(last).split())


def test_names_from_outside_cannot_control_the_terminal() -> None:
    shown = drawn(view(queue("a", concurrency_key="\x1b[31m[bold]k")))
    assert "\x1b" not in shown
    assert "\\x1b[31m[bold]k" in shown


def failing(failed: int, ended: int, **last: Any) -> Json:
    latest = {"execution_id": 7, "status": "failed", "at": "2026-11-21T07:31:00Z", "type": "Broken"}
    return Json(
        failed=failed,
        ended=ended,
        share=failed / ended,
        per_minute=1.0,
        since="2026-11-21T07:21:30Z",
        last={**latest, "message": "it broke", **last} if failed else None,
    )


def test_failures_are_shown_with_their_share_and_the_last_error_of_the_selected_action() -> None:
    seen = view(queue("good", failures=failing(0, 9)), queue("bad", failures=failing(3, 12)))
    assert "3 (25 %)" in drawn(seen)
    assert "it broke" not in drawn(seen)
    seen, _ = after_key(seen, "j")
    assert "Last failure of bad: #7 failed 30s ago; Broken: it broke" in drawn(seen)
    assert "Last failure of bad: #7 failed" in drawn(seen, height=None)
    assert "Last failure of good" not in drawn(seen, height=None)
    assert "Broken" not in drawn(view(queue("old"), queue("unread", failures=None)))


def test_a_small_share_is_not_zero_and_an_incomplete_one_is_not_everything() -> None:
    shares = (0.0, 0.001, 0.25, 0.999, 1.0)
    assert [format_share(share) for share in shares] == ["0 %", "<1 %", "25 %", "99 %", "100 %"]
