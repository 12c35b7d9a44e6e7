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
)


def queue(ref: str, **fields: Any) -> Json:
    usual: dict[str, Any] = {
        "concurrency_key": None, "pool": "default", "max_concurrent": 2, "active_count": 2, "held_waiting": 0,
        "queue_length": 5,
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


def pressed(seen: View, keys: str) -> tuple[View, QueueChange | None]:
    change = None
    for key in keys:
        seen, change = after_key(seen, key)
    return seen, change


def test_a_limit_is_changed_after_one_question_that_says_from_what_to_what() -> None:
    seen, change = pressed(view(queue("a")), "++-+")
    assert change is None
    assert seen.message.startswith("Limit of a: 2 to 4?")
    assert pressed(seen, "n")[1] is None
    assert pressed(seen, "y")[1] == QueueChange(ref="a", verb="limit", shown=2, limit=4)
    for limit, keys in ((0, "-"), (2, "+-")):
        unchanged = pressed(view(queue("a", max_concurrent=limit)), keys)[0]
        assert (unchanged.unconfirmed, unchanged.message) == (None, f"a: limit {limit}")
    unlimited, change = pressed(view(queue("a", max_concurrent=None)), "+y")
    assert (unlimited.unconfirmed, change) == (None, None)
    assert "a: it has no limit" in unlimited.message


def test_a_limit_changed_in_the_row_of_a_key_is_that_of_the_key() -> None:
    seen, _ = pressed(view(queue("a", concurrency_key="k", max_concurrent=4)), "+")
    assert seen.message.startswith("Limit of key k of a: 4 to 5?")
    assert pressed(seen, "y")[1] == QueueChange(ref="a", verb="limit", key="k", shown=4, limit=5)


def test_a_pause_in_the_row_of_a_key_says_that_it_pauses_all_keys() -> None:
    seen, _ = pressed(view(queue("a", concurrency_key="k")), "p")
    assert seen.message.startswith("Pause all keys of a?")


def test_a_change_is_shown_at_once_where_it_applies() -> None:
    seen = view(queue("a", concurrency_key="k", max_concurrent=4), queue("a"), queue("b"))
    for change in (
        QueueChange(ref="a", verb="pause"),
        QueueChange(ref="a", verb="limit", shown=2, limit=7),
        QueueChange(ref="a", verb="limit", key="k", shown=4, limit=5),
    ):
        seen = after_change(seen, change)
    shown = [(each["max_concurrent"], each["paused"]) for each in seen.queues]
    assert shown == [(5, True), (7, True), (2, False)]


def test_a_queue_shows_slots_length_rates_and_problems() -> None:
    shown = drawn(view(queue("a"), queue("b", paused=True, max_concurrent=None), queue("c", served=False)))
    for text in ("██████████ 2 of 2", "1m30s", "1.5", "2, no limit", "paused", "no worker serves default"):
        assert text in shown
    assert "3 queues by waiting" in shown
    assert "1 queue by waiting" in drawn(view(queue("a")))


def test_slots_that_are_held_while_waiting_are_in_use() -> None:
    shown = drawn(view(queue("a", active_count=1, held_waiting=1), queue("b", active_count=0)))
    assert "██████████ 2 of 2" in shown
    assert "10 waiting, 2 slots in use" in shown


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


class Stored:
    """An API with an action of the limit 2, which changes when a change of it is requested."""

    def __init__(self, own: Json | None = None) -> None:
        self.own = own
        self.put_bodies: list[Any] = []

    def get_tagged(self, _: str, *, timeout_seconds: float) -> tuple[Json, str]:
        assert timeout_seconds
        return Json(ref="a", max_concurrent=2, paused=False), '"first"'

    def get(self, path: str) -> Json:
        assert path == "/actions/a/keys/k"
        if self.own is None:
            raise ApiRefused({"code": "not_found"})
        return self.own

    def put(self, path: str, body: bytes) -> None:
        assert path == "/actions/a/keys/k"
        self.put_bodies.append(json.loads(body))

    def patch(self, _: str, body: bytes, *, if_match: str | None) -> Json:
        assert (json.loads(body), if_match) == ({"max_concurrent": 3}, '"first"')
        raise ApiRefused({"code": "precondition_failed"})


def test_a_limit_that_was_changed_meanwhile_is_not_overwritten() -> None:
    for shown in (2, 1):
        change = QueueChange(ref="a", verb="limit", shown=shown, limit=3)
        seen = apply_change(cast("Api", Stored()), view(queue("a")), change)
        assert seen.message == "a: its limit has been changed; press the key again"
    stored = Stored(Json(has_limit=True, max_concurrent=4, weight=3))
    change = QueueChange(ref="a", verb="limit", key="k", shown=2, limit=3)
    assert "press the key again" in apply_change(cast("Api", stored), view(queue("a")), change).message
    assert stored.put_bodies == []


def test_a_key_keeps_its_weight_when_its_limit_is_changed() -> None:
    for own, shown, weight in (
        (None, 2, {}),
        (Json(has_limit=False, max_concurrent=2, weight=3), 2, {"weight": 3}),
        (Json(has_limit=True, max_concurrent=4, weight=3), 4, {"weight": 3}),
    ):
        stored = Stored(own)
        change = QueueChange(ref="a", verb="limit", key="k", shown=shown, limit=5)
        seen = apply_change(cast("Api", stored), view(queue("a", concurrency_key="k")), change)
        assert seen.message == "key k of a: limit 5"
        assert stored.put_bodies == [{"max_concurrent": 5, **weight}]


def history(**fields: Any) -> Json:
    counts = dict.fromkeys(
        ("admitted", "started", "completed", "failed", "timeout", "cancelled", "expired", "abandoned"), 0
    )
    points = [{**counts, "completed": 8 * (minute == 59), "timeout": minute == 0} for minute in range(60)]
    totals = {**counts, "completed": 8, "timeout": 1}
    waiting = {"waiting_p50_seconds": 0.0123, "waiting_p95_seconds": 75.4}
    return Json({"points": points, "totals": {**totals, **waiting, **fields}})


def test_the_last_hour_is_one_line_with_a_bar_for_three_minutes() -> None:
    line = drawn(view(history=history())).splitlines()[1]
    assert line == f"last hour |▁{' ' * 18}█| 9 ended, 1 failed;  waiting p50 12ms, p95 1m15s"
    line = drawn(view(history=history(waiting_p50_seconds=None, waiting_p95_seconds=1.26))).splitlines()[1]
    assert line.endswith("waiting p50 -, p95 1.3s")


def test_a_screen_is_never_longer_than_the_terminal() -> None:
    seen = view(*(queue(f"a{number}") for number in range(300)), workers=[worker(n) for n in range(90)])
    seen = replace(seen, history=history(), degraded={f"pool {n}": "unusable" for n in range(9)})
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
    keys = [queue("bad", concurrency_key=key, failures=None) for key in "xy"]
    seen = view(*keys, queue("bad", failures=failing(3, 12)))
    assert drawn(seen).count("3 (25 %)") == drawn(seen).count("Last failure of bad") == 1


def test_a_small_share_is_not_zero_and_an_incomplete_one_is_not_everything() -> None:
    shares = (0.0, 0.001, 0.25, 0.999, 1.0)
    assert [format_share(share) for share in shares] == ["0 %", "<1 %", "25 %", "99 %", "100 %"]
