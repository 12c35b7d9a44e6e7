"""Failures that are tried again: counted, spaced, in their old place in line, and all of them on record."""

import asyncio
from typing import Any

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {"settings": {"TURNSTILE_WATCHDOG_INTERVAL": "200ms", "TURNSTILE_STOP_GRACE": "300ms"}}
TICK_SECONDS = 0.2
FLAKY = "tests.e2e.actions:scripted"
"""By its entrypoint, so that each test has an action with a policy of its own."""


async def define(stage: Stage, ref: str, **fields: Any) -> None:
    await stage.put(ref, entrypoint=FLAKY, **fields)


async def script(stage: Stage, ref: str, *steps: str, **fields: Any) -> int:
    return await stage.submit(ref, parameters={"steps": steps}, **fields)


async def waits_between(stage: Stage, execution_id: int) -> list[float]:
    """Return the seconds from each attempt's end to the next one's grant."""
    rows = await stage.history.rows(
        """
        SELECT extract(epoch FROM lead(granted_at) OVER (ORDER BY attempt) - ended_at)::float8 AS wait
        FROM attempt WHERE execution_id = $1 ORDER BY attempt
        """,
        execution_id,
    )
    return [row["wait"] for row in rows[:-1]]


async def test_a_failure_is_tried_again_with_growing_waits_until_it_succeeds(stage: Stage) -> None:
    retry = {"max_attempts": 4, "delay": "300ms", "factor": 2, "jitter": 0}
    await define(stage, "grows", retry=retry)
    execution_id = await script(stage, "grows", "FAIL", "FAIL", "FAIL", "OK")
    assert await stage.ended(execution_id) == ["completed"]
    assert await stage.attempts(execution_id) == [
        (1, "retried"),
        (2, "retried"),
        (3, "retried"),
        (4, "completed"),
    ]
    for planned, waited in zip((0.3, 0.6, 1.2), await waits_between(stage, execution_id), strict=True):
        assert planned <= waited < planned + 2 * (TICK_SECONDS + 0.5)
    assert stage.changes(execution_id)[3:] == ["delayed", "queued", "scheduled", "running"] * 3 + [
        "completed"
    ]


async def test_after_the_last_attempt_it_has_failed_and_each_attempt_shows_why(stage: Stage) -> None:
    await define(stage, "gives_up", retry={"max_attempts": 3, "delay": "100ms", "factor": 1})
    execution_id = await script(stage, "gives_up", "FAIL")
    assert await stage.ended(execution_id) == ["failed"]
    shown = await stage.get(execution_id)
    error = {"type": "RuntimeError", "message": "as the script says"}
    assert (shown["attempt"], shown["error"], shown["result"]) == (3, error, None)
    assert [(a["attempt"], a["outcome"], a["error"]) for a in shown["attempts"]] == [
        (1, "retried", error),
        (2, "retried", error),
        (3, "failed", error),
    ]
    logs = await stage.history.rows("SELECT log FROM attempt WHERE execution_id = $1", execution_id)
    assert [log["log"].count("RuntimeError: as the script says") for log in logs] == [1, 1, 1]
    (completion,) = await stage.told(execution_id)
    assert (completion.body["status"], completion.body["attempt"]) == ("failed", 3)


async def test_many_that_fail_together_do_not_come_back_together(stage: Stage) -> None:
    await define(stage, "spread", retry={"max_attempts": 2, "delay": "1h", "max_delay": "2h", "jitter": 0.5})
    ids = [await script(stage, "spread", "FAIL") for _ in range(20)]
    await asyncio.gather(*(stage.stands(execution_id, "delayed") for execution_id in ids))
    rows = await stage.history.rows(
        """
        SELECT extract(epoch FROM e.run_at - t.ended_at)::float8 AS wait
        FROM execution e JOIN attempt t ON t.execution_id = e.id WHERE e.id = ANY ($1)
        """,
        ids,
    )
    waits = [row["wait"] / 3600 for row in rows]
    assert all(0.499 <= wait <= 1.501 for wait in waits)
    assert len({round(wait, 4) for wait in waits}) > 15
    assert max(waits) - min(waits) > 0.3
    await stage.cancel(*ids)
    assert await stage.ended(*ids) == ["cancelled"] * 20


@pytest.mark.parametrize(
    ("step", "end"), [("PERMANENT", "failed"), ("HANG", "timeout")], ids=["permanent error", "timeout"]
)
async def test_a_permanent_error_and_a_timeout_are_not_tried_again(stage: Stage, step: str, end: str) -> None:
    await define(stage, "not.again", retry={"max_attempts": 5, "delay": "0s"}, timeout="1s")
    execution_id = await script(stage, "not.again", step, "OK")
    assert await stage.ended(execution_id) == [end]
    assert await stage.attempts(execution_id) == [(1, end)]


async def test_a_temporary_error_says_itself_how_long_to_wait_and_is_counted(stage: Stage) -> None:
    await define(stage, "later", retry={"max_attempts": 2, "delay": "1h"})
    execution_id = await script(stage, "later", "LATER", "LATER")
    assert await stage.ended(execution_id, deadline_seconds=10) == ["failed"]
    assert await stage.attempts(execution_id) == [(1, "retried"), (2, "failed")]
    (waited,) = await waits_between(stage, execution_id)
    assert waited >= 0.2


async def test_while_one_waits_for_its_retry_others_run_and_when_due_it_stands_before_them(
    stage: Stage,
) -> None:
    await define(stage, "line", max_concurrent=1, retry={"max_attempts": 2, "delay": "1h"})
    # Held back until all three stand in line.
    await stage.patch("line", paused=True)
    retried, second = [await script(stage, "line", *steps) for steps in (["FAIL", "OK"], ["HANG"])]
    behind = await script(stage, "line", "OK")
    await stage.patch("line", paused=False)
    await stage.stands(second, "running")
    assert await stage.status(retried) == "delayed"
    assert (await stage.get(retried))["waiting_on"]["reason"] == "not_due"
    await stage.history.value(
        "UPDATE delayed SET due_at = clock_timestamp() WHERE execution_id = $1", retried
    )
    await stage.stands(retried, "queued")
    assert [(await stage.get(i))["position"] for i in (retried, behind)] == [1, 2]
    await stage.cancel(second)
    assert await stage.ended(retried, second, behind) == ["completed", "cancelled", "completed"]
    rows = await stage.history.rows(
        "SELECT execution_id FROM attempt WHERE execution_id = ANY ($1) ORDER BY granted_at",
        [retried, second, behind],
    )
    assert [row["execution_id"] for row in rows] == [retried, second, retried, behind]


async def test_no_attempt_is_made_that_could_not_start_within_the_time_to_live(stage: Stage) -> None:
    await define(stage, "short.lived", retry={"max_attempts": 5, "delay": "1h"})
    execution_id = await script(stage, "short.lived", "FAIL", ttl="1m")
    assert await stage.ended(execution_id) == ["failed"]
    assert await stage.attempts(execution_id) == [(1, "failed")]
