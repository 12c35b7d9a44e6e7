"""/metrics shows what happened in both services."""

import json

import pytest

from tests.integration.telemetry.conftest import Observed, secrets_of
from tests.support.traffic import publishing, request, until
from turnstile.client import ExecutionFailed, Rejected, Request, Status

pytestmark = pytest.mark.asyncio(loop_scope="package")

RUNS = 5


async def test_both_services_count_and_time_executions(observed: Observed) -> None:
    before = await observed.executor("turnstile_server_up", 1, server="database")
    await observed.client.submit_many([Request(action_ref="one") for _ in range(RUNS)])
    await observed.client.run("one", idempotency_key="counted-once")
    assert (await observed.client.submit("one", idempotency_key="counted-once")).duplicate
    with pytest.raises(ExecutionFailed):
        await observed.client.run("retried", {"steps": ["PERMANENT"]})
    with pytest.raises(Rejected):
        await observed.client.submit("unknown.action")
    async with publishing(observed.system.amqp_url) as publisher:
        # Without an address for the answer: a dead letter.
        await publisher.publish([request({"action_ref": "unknown.action"})])
    refused = await observed.http.post(
        f"{observed.system.http_url}/api/v1/executions", json={"action": "one"}
    )
    assert refused.status_code == 422

    completed, failed = (
        (before.value("turnstile_attempts_ended_total", status=status) or 0) + count
        for status, count in (("completed", RUNS + 1), ("failed", 1))
    )
    await observed.executor("turnstile_attempts_ended_total", completed, status="completed")
    await observed.executor("turnstile_attempts_ended_total", failed, status="failed")
    letters = (before.value("turnstile_dead_lettered_total", code="unknown_action") or 0) + 1
    executor = await observed.executor("turnstile_dead_lettered_total", letters, code="unknown_action")
    assert executor.value("turnstile_admitted_total", action_ref="one") == RUNS + 1
    assert executor.value("turnstile_duplicates_total", action_ref="one") == 1
    assert executor.value("turnstile_granted_total", action_ref="one") == RUNS + 1
    assert executor.value("turnstile_grant_seconds_count", action_ref="one") == RUNS + 1
    ends = [("one", "completed", RUNS + 1), ("one", "failed", 0), ("retried", "failed", 1)]
    for ref, status, count in ends:
        labels = {"action_ref": ref, "status": status}
        assert executor.value("turnstile_executions_ended_total", **labels) == count
    assert (executor.value("turnstile_last_failure_timestamp_seconds", action_ref="retried") or 0) > 1e9
    assert executor.value("turnstile_last_failure_timestamp_seconds", action_ref="one") is None
    assert executor.since(before, "turnstile_refused_total", code="unknown_action") == 2
    assert executor.since(before, "turnstile_refused_total", code="unknown_field") == 1
    assert executor.since(before, "turnstile_hand_over_seconds_count") >= 1
    assert executor.value("turnstile_drift_found_total") == 0

    worker = await observed.worker("turnstile_ended_total", RUNS + 1, action_ref="one", status="completed")
    assert worker.value("turnstile_ended_total", action_ref="retried", status="failed") == 1
    for histogram in ("turnstile_wait_seconds", "turnstile_run_seconds"):
        assert worker.value(f"{histogram}_count", action_ref="one") == RUNS + 1
        assert (worker.value(f"{histogram}_sum", action_ref="one") or 0) > 0


async def test_the_content_type_follows_the_accept_header(observed: Observed) -> None:
    url = f"{observed.system.http_url}/metrics"
    plain = await observed.http.get(url, headers={"Accept": "text/plain"})
    assert plain.headers["content-type"].startswith("text/plain; version=")
    openmetrics = await observed.http.get(
        url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


async def test_each_transition_has_one_event_and_no_line_has_a_secret(observed: Observed) -> None:
    submitted = await observed.client.submit("noop")
    completion = await observed.client.wait(submitted.execution_id)
    assert completion.status is Status.COMPLETED

    def events() -> list[str]:
        lines = [
            json.loads(line)
            for service in (*observed.system.executors, *observed.system.workers)
            for line in service.log.read_text().splitlines()
        ]
        return sorted(line["event"] for line in lines if line.get("execution_id") == submitted.execution_id)

    await until(lambda: "execution_end_committed" in events())
    assert events() == [
        "execution_admitted",
        "execution_end_committed",
        "execution_ended",
        "execution_granted",
        "execution_started",
    ]
    for service in (*observed.system.executors, *observed.system.workers):
        text = service.log.read_text()
        assert not [secret for secret in secrets_of(observed.system) if secret in text], service.name
