"""claim: one worker, one attempt, a live lease (P6)."""

import pytest

from tests.support.protocol import OTHER_WORKER, Protocol, new_worker, request
from turnstile.worker.record import Claim


@pytest.fixture
async def granted(protocol: Protocol) -> list[int]:
    """Three executions that hold their slots, under a second worker too."""
    await protocol.register(OTHER_WORKER)
    await protocol.put(max_concurrent=3)
    return await protocol.submit(count=3)


async def test_of_two_workers_one_wins(protocol: Protocol, granted: list[int]) -> None:
    assert await protocol.claim_verdicts(*granted) == ["claimed"] * 3
    assert await protocol.claim_verdicts(*granted, worker=OTHER_WORKER) == ["stale"] * 3
    owners = await protocol.column("SELECT DISTINCT worker_id FROM slot WHERE claimed_at IS NOT NULL")
    assert owners == ["worker-1"]


async def test_the_same_worker_is_told_again_what_it_holds(protocol: Protocol, granted: list[int]) -> None:
    (first,) = await protocol.claim(granted[0])
    started_at = (await protocol.execution(granted[0]))["started_at"]
    (again,) = await protocol.claim(granted[0])
    assert first == again
    assert (await protocol.execution(granted[0]))["started_at"] == started_at


async def test_an_attempt_that_is_over_cannot_be_claimed(protocol: Protocol, granted: list[int]) -> None:
    one = granted[0]
    await protocol.claim(one)
    await protocol.hand_back(one)
    await protocol.grant((await protocol.queue())["id"])
    assert await protocol.claim_verdicts(one, attempt=1, worker=OTHER_WORKER) == ["stale"]
    assert await protocol.claim_verdicts(one, attempt=2, worker=OTHER_WORKER) == ["claimed"]


async def test_what_the_record_does_not_know_yet_is_unknown(protocol: Protocol, granted: list[int]) -> None:
    assert await protocol.claim_verdicts(10**12) == ["unknown"]
    assert await protocol.claim_verdicts(granted[0], attempt=2) == ["unknown"]
    assert await protocol.status(granted[0]) == "scheduled"


async def test_one_batch_may_hold_every_verdict(protocol: Protocol, granted: list[int]) -> None:
    await protocol.claim(granted[1], worker=OTHER_WORKER)
    assert await protocol.claim_verdicts(granted[2], 10**12, granted[1], granted[0]) == [
        "claimed", "unknown", "stale", "claimed",
    ]  # fmt: skip


async def test_an_empty_batch_is_nothing(protocol: Protocol) -> None:
    assert await protocol.claim() == []


@pytest.mark.parametrize("how", ["never registered", "lease over", "signed off", "given up"])
async def test_without_a_live_lease_nothing_is_claimed(
    protocol: Protocol, granted: list[int], how: str
) -> None:
    worker = new_worker()
    if how != "never registered":
        await protocol.register(worker)
    if how == "lease over":
        await protocol.lose_lease(worker)
    elif how == "signed off":
        await protocol.connection.execute("SELECT turnstile.sign_off($1)", worker)
    elif how == "given up":
        await protocol.connection.execute("UPDATE worker SET lost_at = now() WHERE id = $1", worker)
    assert await protocol.claim_verdicts(*granted, worker=worker) == ["lease_over"] * 3
    assert await protocol.statuses(*granted) == ["scheduled"] * 3


async def test_what_waits_or_has_ended_cannot_be_claimed(protocol: Protocol, granted: list[int]) -> None:
    (waiting,) = await protocol.submit()
    await protocol.run(granted[0])
    await protocol.cancel(granted[1])
    # What waits has had no grant: the offer is ahead of the record.
    assert await protocol.claim_verdicts(waiting, granted[0], granted[1]) == ["unknown", "stale", "stale"]


async def test_a_deadline_for_the_start_holds_for_the_claim(protocol: Protocol) -> None:
    await protocol.put()
    (one,) = await protocol.submit(ttl=60)
    await protocol.connection.execute("UPDATE execution SET expires_at = clock_timestamp()")
    assert await protocol.claim_verdicts(one) == ["stale"]
    assert await protocol.status(one) == "scheduled"


async def test_a_claim_brings_all_that_is_needed_to_run(protocol: Protocol) -> None:
    await protocol.put(
        "tool", runner="command", entrypoint=["wc", "-w"], timeout=7,
        retry={"max_attempts": 3, "delay": 2, "factor": 4, "max_delay": 9, "jitter": 0.5},
    )  # fmt: skip
    await protocol.admit(request("tool", parameters={"x": [1, None]}))
    (one,) = await protocol.held()
    (claim,) = await protocol.claim(one)
    assert isinstance(claim, Claim)
    assert (claim.action_ref, claim.runner, claim.entrypoint_json) == ("tool", "command", '["wc", "-w"]')
    assert (claim.parameters_json, claim.timeout_seconds, claim.failures) == ('{"x": [1, null]}', 7.0, 0)
    retry = claim.retry
    assert (retry.max_attempts, retry.delay_seconds, retry.factor) == (3, 2.0, 4.0)
    assert (retry.max_delay_seconds, retry.jitter) == (9.0, 0.5)


async def test_a_lease_that_is_over_can_be_renewed_until_it_is_given_up(protocol: Protocol) -> None:
    await protocol.lose_lease()
    assert await protocol.renew() == (True, False)
    await protocol.connection.execute("UPDATE worker SET draining_at = now()")
    assert await protocol.renew() == (True, True)
    await protocol.connection.execute("UPDATE worker SET lost_at = now()")
    assert await protocol.renew() == (False, False)


async def test_a_worker_id_is_registered_once(protocol: Protocol) -> None:
    await protocol.connection.execute("UPDATE worker SET lost_at = now()")
    await protocol.register()
    assert await protocol.renew() == (False, False)
