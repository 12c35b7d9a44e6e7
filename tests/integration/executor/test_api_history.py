"""`GET /history`: whole minutes of several leaders, added up."""

from datetime import datetime
from typing import Any

import pytest

from tests.support.served import Served
from tests.support.traffic import until
from turnstile.executor.histogram import histogram_of

_INSERT = """
INSERT INTO ledger.action_minute (
    at, epoch, slot_seconds, admitted, started, completed, failed, timeout, cancelled, expired, abandoned,
    action_ref, waiting, running
) SELECT date_trunc('minute', now() - interval '3 s', 'UTC') - $1 * interval '1 minute', $2, 30,
         10, 8, 1, 2, 3, 4, 5, 6, $3, $4::text::numeric, $5::text::numeric
"""


async def note(
    api: Served, ref: str, *, minutes_ago: int, epoch: int = 1, waiting: float = 1.0, running: float = 2.0
) -> None:
    histograms = [str(10 * histogram_of(seconds)) for seconds in (waiting, running)]
    await api.database.fetch(_INSERT, minutes_ago, epoch, ref, *histograms)


def counts(found: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in found.items() if isinstance(value, int)}


@pytest.mark.parametrize(
    ("window", "seconds", "points"), [("1h", 60, 60), ("24h", 600, 144), ("7d", 3600, 168)]
)
async def test_a_window_has_all_of_its_points_in_order(
    api: Served, window: str, seconds: int, points: int
) -> None:
    await note(api, "a", minutes_ago=1)
    found = await api.get("/history", window=window)
    assert (found["window"], found["resolution_seconds"], len(found["points"])) == (window, seconds, points)
    instants = [datetime.fromisoformat(each["at"]).timestamp() for each in found["points"]]
    since, until_ = (datetime.fromisoformat(found[name]).timestamp() for name in ("from", "until"))
    assert instants == [since + seconds * number for number in range(points)]
    assert (until_ - instants[-1], until_ % 60) == (seconds, 0)
    assert found["points"][-1]["completed"] == 1
    assert {each["admitted"] for each in found["points"][:-1]} == {0}
    assert found["points"][0]["waiting_p50_seconds"] is None


async def test_minutes_of_leaders_and_actions_are_added_up(api: Served) -> None:
    await note(api, "a", minutes_ago=3, waiting=1.0)
    # Another leader has counted the rest of this minute.
    await note(api, "a", minutes_ago=3, epoch=2, waiting=100.0)
    await note(api, "b", minutes_ago=3)
    await note(api, "b", minutes_ago=5)
    # Before the window.
    await note(api, "b", minutes_ago=61)
    found = await api.get("/history")
    one = {
        "admitted": 10, "started": 8, "completed": 1, "failed": 2, "timeout": 3, "cancelled": 4,
        "expired": 5, "abandoned": 6,
    }  # fmt: skip
    times = {number: {name: number * count for name, count in one.items()} for number in (1, 2, 3, 4)}
    assert counts(found["totals"]) == times[4]
    assert {each["action_ref"]: counts(each) for each in found["actions"]} == {"a": times[2], "b": times[2]}
    assert counts(found["points"][-3]) == times[3]
    assert counts(found["points"][-5]) == times[1]
    assert found["points"][-3]["slots_used"] == 3 * 30 / 60
    assert found["totals"]["slots_used"] == 4 * 30 / 3600
    (a,) = (each for each in found["actions"] if each["action_ref"] == "a")
    assert a["waiting_p50_seconds"] == pytest.approx(1, rel=0.19)
    assert a["waiting_p95_seconds"] == pytest.approx(100, rel=0.19)
    assert a["running_p95_seconds"] == pytest.approx(2, rel=0.19)
    of_a = await api.get("/history", action_ref="a")
    assert (of_a["totals"], of_a["actions"]) == ({k: v for k, v in a.items() if k != "action_ref"}, None)
    nothing = await api.get("/history", action_ref="c")
    assert set(counts(nothing["totals"]).values()) == {0}


async def test_the_busiest_actions_are_listed_first(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.executor.queries.history_reader.ACTIONS_MAX", 2)
    for ref, times in (("a", 1), ("b", 3), ("c", 2)):
        for minutes_ago in range(1, 1 + times):
            await note(api, ref, minutes_ago=minutes_ago)
    found = await api.get("/history")
    assert [each["action_ref"] for each in found["actions"]] == ["b", "c"]
    assert found["totals"]["started"] == 6 * 8


@pytest.mark.parametrize(
    ("query", "field"), [({"window": "2h"}, "window"), ({"action_ref": ""}, "action_ref"), ({"n": "1"}, "n")]
)
async def test_a_wrong_question_is_refused_with_the_name_of_the_field(
    api: Served, query: dict[str, str], field: str
) -> None:
    answer = await api.http.get("/api/v1/history", params=query)
    assert (answer.status_code, field in answer.json()["detail"]) == (422, True)


async def test_a_leader_that_stops_writes_the_minute_and_the_next_one_goes_on(api: Served) -> None:
    await api.define("a", max_concurrent=2)
    api.join()
    await api.run((await api.submit("a"))["id"])
    left = (await api.submit("a"))["id"]
    api.leader.leader.stop()
    api.leader.clock.wake()
    await api.leader.task
    second = api.installation.lead("b")
    worker = second.broker.new_worker("other")
    await until(lambda: second.leader.leadership is not None, "leadership", deadline_seconds=10)
    worker.hello(concurrency=2)
    await api.installation.define("action", "b", max_concurrent=2)
    second.leader.stop()
    second.clock.wake()
    await second.task
    rows = await api.database.fetch(
        "SELECT epoch, admitted, started, completed, slot_seconds FROM ledger.action_minute ORDER BY epoch"
    )
    assert sum(row["admitted"] for row in rows) == 2, left
    assert sum(row["completed"] for row in rows) == 1
    assert len({row["epoch"] for row in rows}) == 2
    assert all(row["slot_seconds"] > 0 for row in rows)
    # It is seen once the minute is over.
    await api.database.fetch("UPDATE ledger.action_minute SET at = at - interval '3 minutes'")
    found = await api.get("/history", action_ref="a")
    assert (found["totals"]["admitted"], found["totals"]["completed"]) == (2, 1)
    assert found["totals"]["waiting_p95_seconds"] is not None
