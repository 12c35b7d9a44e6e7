"""Results that nobody could read: each ends its execution and frees its slot, and harms no executor."""

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE = {
    "workers": 0,
    "settings": {"TURNSTILE_WATCHDOG_INTERVAL": "250ms", "TURNSTILE_SETTLE_TIMEOUT": "1s"},
}


async def test_a_result_that_nobody_could_read_is_a_failure_and_the_next_in_line_starts(
    stage: Stage,
) -> None:
    worker = await stage.start_worker()
    results = [{"levels": 200}, {"levels": 230}, {"digits": 5000}, {"levels": 196, "digits": 4300}]
    ids = [await stage.submit("unreadable", parameters=parameters) for parameters in results]
    assert await stage.ended(*ids) == ["failed"] * 3 + ["completed"]
    for execution_id in ids[:3]:
        told = (await stage.told(execution_id))[0]
        assert (told.app_id, told.body["error"]["type"]) == ("worker", "InvalidResult")
    listed = await stage.http.get("/executions", params={"action_ref": "unreadable"})
    assert [item["error"] is None for item in listed.json()["items"]] == [True, False, False, False]
    await worker.stop()


async def test_what_a_stolen_account_reports_frees_its_slot_and_harms_no_executor(stage: Stage) -> None:
    """It claims and finishes by the protocol, with any result, and tells nobody."""
    await stage.put("unserved", max_concurrent=1, pool="nobody", submitter_keys=True)
    results = ["[" * depth + "1" + "]" * depth for depth in (199, 200, 230)] + ["9" * 5000]
    ids = [await stage.submit("unserved", concurrency_key=result[-300:]) for result in results]
    await stage.history.rows(
        "SELECT turnstile.register_worker('thief', 'thief', 'there', 1, '{nobody}', 9, 60)"
    )
    numbers = [1] * len(ids)
    claims = await stage.history.rows("SELECT * FROM turnstile.claim('thief', $1, $2)", ids, numbers)
    assert {claim["verdict"] for claim in claims} == {"claimed"}
    nothing: list[None] = [None] * len(ids)
    await stage.history.rows(
        "SELECT turnstile.finish('thief', $1, $2, $3, $4, $5, $5, $5, $6)",
        ids,
        numbers,
        ["completed"] * len(ids),
        results,
        nothing,
        nothing,
    )
    assert await stage.ended(*ids) == ["completed"] * len(ids)
    for execution_id in ids:
        told = (await stage.told(execution_id))[0]
        assert (told.app_id, told.body["result"]) == ("executor", None)
        assert (await stage.get(execution_id))["result"] is None
    listed = await stage.http.get("/executions", params={"action_ref": "unserved", "worker_id": "thief"})
    assert [item["result"] for item in listed.json()["items"]] == [None] * len(ids)
    assert all(executor.process.returncode is None for executor in stage.system.executors)
    await stage.history.rows("SELECT turnstile.sign_off('thief')")
