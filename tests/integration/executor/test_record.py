"""The worker's batches: claims and finishes in one commit, and one bad report harms no other."""

from tests.support.protocol import Protocol, offer
from turnstile.common.domain.states import Status
from turnstile.worker.record import Claim, Finished, Offer, Report


def _report(execution_id: int, result_json: str) -> Report:
    claimed = offer(execution_id, 1)
    return Report(
        execution_id=claimed.execution_id,
        attempt=claimed.attempt,
        status=Status.COMPLETED,
        result_json=result_json,
    )


async def test_claims_and_ends_of_one_batch_are_answered_in_its_order(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=None)
    first, second, third = await protocol.submit("a", 3)
    await protocol.claim(first, second)
    answers = await protocol.record().exchange([_report(second, "2"), offer(third, 1), _report(first, "1")])
    assert [type(answer) for answer in answers] == [Finished, Claim, Finished]
    assert isinstance(answers[1], Claim)
    assert answers[1].execution_id == third


async def test_a_report_that_the_database_refuses_ends_its_attempt_alone(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=None)
    ids = await protocol.submit("a", 4)
    await protocol.claim(*ids[:3])
    wishes: list[Offer | Report] = [
        _report(ids[0], "1"),
        _report(ids[1], "{no json"),
        _report(ids[2], "3"),
        offer(ids[3], 1),
    ]
    answers = await protocol.record().exchange(wishes)
    statuses = [answer.status for answer in answers if isinstance(answer, Finished)]
    assert statuses == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert isinstance(answers[3], Claim)
    error = await protocol.connection.fetchval("SELECT error_type FROM execution WHERE id = $1", ids[1])
    assert error == "ReportRefused"
