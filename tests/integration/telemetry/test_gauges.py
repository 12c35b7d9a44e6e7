"""The state in a scrape is the leader's; what is not answered is absent; counts of its process are added."""

import msgspec
import pytest

from tests.integration.telemetry.conftest import samples_in
from tests.support.served import Served
from tests.support.traffic import until
from turnstile.executor import leader_counts, metrics
from turnstile.executor.gauges import Gauges
from turnstile.executor.leader_counts import Counts, Distribution, LeaderCounts
from turnstile.executor.questions.protocol import Unanswered

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(api: Served) -> Samples:
    answer = await api.http.get("/metrics")
    assert answer.status_code == 200
    return samples_in(answer.text)


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def shows(api: Served, name: str, expected: float, **labels: str) -> Samples:
    """Scrape until a metric has this value."""
    found: Samples = {}

    async def is_shown() -> bool:
        nonlocal found
        found = await scraped(api)
        return value(found, name, **labels) == expected

    await until(is_shown, f"{name} {expected}")
    return found


async def test_a_scrape_shows_queues_gates_workers_and_dead_letters(api: Served) -> None:
    assert (await api.http.put("/api/v1/resources/gpu", json={"capacity": 2})).status_code in (200, 201)
    await api.define("gauged", max_concurrent=1, uses=[{"resource": "gpu", "units": 2}])
    api.join(concurrency=4)
    first, *_ = await api.submit_many("gauged", 3)
    await api.until_offered(first)
    found = await shows(api, "turnstile_queue_depth", 2, action_ref="gauged")
    for name, expected in (("slots_held", 1), ("slot_limit", 1)):
        assert value(found, f"turnstile_{name}", action_ref="gauged") == expected
    assert value(found, "turnstile_waiting", action_ref="gauged", reason="limit") == 2
    assert (value(found, "turnstile_queue_oldest_seconds", action_ref="gauged") or 0) > 0
    for name, expected in (("held", 2), ("capacity", 2), ("waiting", 0), ("paused", 0)):
        assert value(found, f"turnstile_resource_{name}", resource="gpu") == expected
    for name, expected in (("capacity", 4), ("held", 1), ("waiting", 0), ("paused", 0)):
        assert value(found, f"turnstile_pool_{name}", pool="default") == expected
    assert value(found, "turnstile_workers", state="live") == 1
    assert value(found, "turnstile_workers", state="overdue") == 0
    assert value(found, "turnstile_dead_letters", code="unknown_action") == 0
    assert value(found, "turnstile_submission_left_seconds") is not None


async def test_slots_held_while_waiting_at_a_later_gate_are_held(api: Served) -> None:
    for name, capacity, rank in (("desk", 9, 1), ("licence", 1, 2)):
        resource = {"capacity": capacity, "rank": rank}
        assert (await api.http.put(f"/api/v1/resources/{name}", json=resource)).is_success
    await api.define("holding", max_concurrent=3, uses=["desk", "licence"])
    api.join(concurrency=4)
    first, *_ = await api.submit_many("holding", 5)
    await api.until_offered(first)
    found = await shows(api, "turnstile_slots_held", 3, action_ref="holding")
    assert value(found, "turnstile_queue_depth", action_ref="holding") == 4


async def test_what_no_leader_answers_is_absent_and_counted(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.define("seen")
    await shows(api, "turnstile_queue_depth", 0, action_ref="seen")
    failures = metrics.SCRAPE_FAILURES.values[()]
    asker = api.leader.asker()

    async def cannot(question: object, seconds: float = 2.0) -> Unanswered:
        return Unanswered(why="no_answer", message="no leader answered within 2 s")

    monkeypatch.setattr(asker, "ask", cannot)
    await Gauges(api.database, asker).refresh()
    assert metrics.QUEUE_DEPTH.values == metrics.WORKERS.values == metrics.POOL_CAPACITY.values == {}
    assert metrics.DEAD_LETTERS.values
    assert metrics.SCRAPE_FAILURES.values[()] == failures + 1


def counts(process: str, granted: int, times: list[int], *, leads: bool = True) -> bytes:
    return msgspec.json.encode(
        Counts(
            process=process,
            counters={"turnstile_granted_total": [(("brought",), granted)]},
            histograms={
                "turnstile_grant_seconds": [Distribution(("brought",), times, float(sum(times)))],
                "turnstile_from_another_version_seconds": [],
            },
            gauges={"turnstile_leading": [((), float(leads))]},
        )
    )


def test_counts_of_the_leaders_process_go_on_when_it_starts_again() -> None:
    taken, buckets = LeaderCounts(), len(metrics.GRANT_SECONDS.counts.get(("x",), [0] * 19))
    first, later = [1] * buckets, [2] * buckets
    for data in (
        counts("a", 3, first),
        counts("a", 5, later),
        counts("a", 5, later),
        None,
        counts("b", 2, first),
    ):
        taken.take(data)
    assert metrics.GRANTED.values["brought",] == 7
    assert metrics.GRANT_SECONDS.counts["brought",] == [3] * buckets
    assert metrics.GRANT_SECONDS.sums["brought",] == 3.0 * buckets
    assert metrics.LEADING.values == {(): 1.0}
    taken.take(None)
    assert metrics.LEADING.values == {}


def test_all_that_a_process_has_counted_is_sent() -> None:
    metrics.RECLAIMS.add("queued")
    sent = msgspec.json.decode(leader_counts.counted(), type=Counts)
    assert dict(sent.counters["turnstile_reclaims_total"])["queued",] == metrics.RECLAIMS.values["queued",]
    assert sent.process
