"""P8 with real processes: messages hand over, the watchdog only heals."""

from tests.support.history import history_of
from tests.support.processes import running
from tests.support.traffic import submit

NO_WATCHDOG = {"TURNSTILE_WATCHDOG_INTERVAL": "1h"}


async def test_a_full_queue_hands_over_without_the_watchdog(database_url: str, amqp_url: str) -> None:
    async with (
        running(database_url, amqp_url, workers=2, settings=NO_WATCHDOG),
        history_of(database_url) as history,
    ):
        await submit(amqp_url, [{"action_ref": "one"}] * 300)
        await history.ended(300)
        assert await history.most_at_once("one") == 1
