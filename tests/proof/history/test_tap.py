"""The tap hears all, however much it is."""

from datetime import UTC, datetime

from tests.proof.history.tap import declare_tap, read_tap
from tests.support.traffic import publishing
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import completed_message
from turnstile.common.messages import ExecutionCompleted


async def test_the_tap_hears_more_than_a_queue_hands_out_at_once(amqp_url: str) -> None:
    count = 3000
    ended_at = datetime.now(UTC)
    await declare_tap(amqp_url)
    async with publishing(amqp_url) as publisher:
        await publisher.publish(
            [
                completed_message(
                    ExecutionCompleted(
                        execution_id=number,
                        action_id=1,
                        action_ref="one",
                        status=Status.COMPLETED,
                        attempt=1,
                        completed_at=ended_at,
                    ),
                    app_id="worker",
                )
                for number in range(1, count + 1)
            ]
        )
    wanted = range(1, count + 1)
    for _ in range(2):
        told = await read_tap(amqp_url, wanted=wanted, patience_seconds=20.0)
        assert [t.execution_id for t in told] == list(wanted)
