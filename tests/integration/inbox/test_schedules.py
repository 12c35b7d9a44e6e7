"""Each occurrence that a policy admits is one execution, whatever leader decides it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.inbox import Installation, delete, patch, put
from tests.support.traffic import until
from turnstile.common.schedules import occurrence_of


async def _keys(made: Installation, name: str) -> list[float]:
    rows = await made.fetch(
        "SELECT idempotency_key FROM ledger.execution WHERE idempotency_key LIKE 'schedule:%' ORDER BY id"
    )
    found = [occurrence_of(row["idempotency_key"]) for row in rows]
    return [each[1].timestamp() for each in found if each is not None and each[0] == name]


async def _state(made: Installation) -> Any:
    (row,) = await made.fetch(
        "SELECT extract(epoch FROM decided_at)::bigint AS decided_at, admitted, skipped, refused,"
        " extract(epoch FROM missed_at)::bigint AS missed_at, problem FROM ledger.schedule"
    )
    return row


def _without_gap(instants: Sequence[float]) -> bool:
    return [*instants] == [instants[0] + number for number in range(len(instants))]


async def test_each_second_is_one_execution_over_killed_leaders(installation: Installation) -> None:
    leader = installation.lead("a")
    await installation.define("action", "a")
    await installation.define("schedule", "s", action_ref="a", every=1, catch_up="all")
    for name in ("b", "c"):
        count = len(await _keys(installation, "s"))
        await until(lambda count=count: _at_least(installation, count + 2))  # type: ignore[misc]
        await leader.kill()
        leader = installation.lead(name)
    await until(lambda: _at_least(installation, 8))
    await installation.inbox.decide([patch("schedule", "s", paused=True)])
    found = await _keys(installation, "s")
    assert _without_gap(found)
    state = await _state(installation)
    assert (state["admitted"], state["skipped"], state["missed_at"]) == (len(found), 0, None)


async def _at_least(made: Installation, count: int) -> bool:
    return len(await _keys(made, "s")) >= count


@pytest.mark.parametrize(("catch_up", "most"), [("none", 0), ("one", 1), ("all", 3)])
async def test_after_an_outage_of_a_year_as_many_run_as_the_policy_says(
    installation: Installation, catch_up: str, most: int
) -> None:
    leader = installation.lead("a")
    await installation.define("action", "a")
    cron = {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}
    await installation.define("schedule", "s", action_ref="a", catch_up=catch_up, catch_up_max=3, **cron)
    await leader.kill()
    await installation.session.execute(
        "UPDATE ledger.schedule SET decided_at = decided_at - interval '366 days', wake_at = now()"
        " - interval '366 days'"
    )
    before = (await _state(installation))["decided_at"]
    installation.lead("b")

    async def is_decided() -> bool:
        return bool((await _state(installation))["decided_at"] > before + 300 * 86400)

    await until(is_decided)
    assert most <= len(await _keys(installation, "s")) <= most + 1
    assert (await _state(installation))["missed_at"] is not None


async def test_skip_leaves_out_what_overlaps_and_counts_it(installation: Installation) -> None:
    installation.lead("a")
    await installation.define("action", "a", paused=True)
    await installation.define("schedule", "s", action_ref="a", every=1, overlap="skip")

    async def has_skipped() -> bool:
        return bool((await _state(installation))["skipped"] >= 2)

    await until(has_skipped)
    assert len(await _keys(installation, "s")) == 1


async def test_cancel_running_leaves_only_the_newest(installation: Installation) -> None:
    installation.lead("a")
    await installation.define("action", "a", paused=True)
    await installation.define("schedule", "s", action_ref="a", every=1, overlap="cancel_running")
    await until(lambda: _at_least(installation, 3))
    rows = await installation.fetch("SELECT status::text FROM ledger.execution ORDER BY id")
    statuses = [row["status"] for row in rows]
    assert statuses == ["cancelled"] * (len(statuses) - 1) + ["queued"]


async def test_a_refused_occurrence_says_why(installation: Installation) -> None:
    installation.lead("a")
    await installation.define("action", "a", paused=True, when_full="reject", max_queued=0)
    await installation.define("schedule", "s", action_ref="a", every=1)

    async def is_refused() -> bool:
        return bool((await _state(installation))["refused"] >= 1)

    await until(is_refused)
    assert "queue" in (await _state(installation))["problem"]
    assert await _keys(installation, "s") == []


async def test_a_schedule_that_is_made_again_repeats_no_occurrence(installation: Installation) -> None:
    installation.lead("a")
    await installation.define("action", "a")
    await installation.define("schedule", "s", action_ref="a", every=1)
    await until(lambda: _at_least(installation, 1))
    for _ in range(3):
        await installation.inbox.decide(
            [delete("schedule", "s"), put("schedule", "s", action_ref="a", every=1)]
        )
        await asyncio.sleep(0)
    await until(lambda: _at_least(installation, 3))
    found = await _keys(installation, "s")
    assert len(found) == len(set(found))


async def test_what_a_schedule_needs_is_checked(installation: Installation) -> None:
    installation.lead("a")
    refused = await installation.define("schedule", "s", action_ref="a", every=60)
    assert refused["code"] == "unknown_action"
    await installation.define("action", "a")
    await installation.define("schedule", "s", action_ref="a", cron="0 6 * * *")
    (in_use,) = await installation.inbox.decide([delete("action", "a")])
    assert "has schedules: s" in in_use["message"]
    (both,) = await installation.inbox.decide([patch("schedule", "s", every=60)])
    assert "give exactly one" in both["message"]
    (changed,) = await installation.inbox.decide([patch("schedule", "s", every=60, cron=None)])
    assert changed["is_changed"]
    (_, verb, kind, subject) = (await installation.audit())[-1]
    assert (verb, kind, subject) == ("changed", "schedule", "s")
