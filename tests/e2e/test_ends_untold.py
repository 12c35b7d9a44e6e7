"""P4 where whoever ended an execution died before it could tell: only its row remembers."""

import signal

import httpx
import pytest

from tests.support.stage import staged
from tests.support.traffic import publishing
from turnstile.common.crash_points import VARIABLE, CrashPoint
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import slot_message

SETTINGS = {
    VARIABLE: str(CrashPoint.CANCELLATION_DECIDED),
    "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    "TURNSTILE_SETTLE_TIMEOUT": "3s",
}


async def test_a_late_message_of_an_attempt_does_not_hide_that_the_end_after_it_was_told_to_nobody(
    database_url: str, amqp_url: str
) -> None:
    async with staged(database_url, amqp_url, settings=SETTINGS) as stage:
        await stage.put("scripted", retry={"max_attempts": 2, "delay": "1h"})
        execution_id = await stage.submit("scripted", parameters={"steps": ["FAIL"]})
        await stage.stands(execution_id, "delayed")
        with pytest.raises(httpx.TransportError):
            await stage.cancel(execution_id)
        assert await stage.system.executors[0].process.wait() == -signal.SIGKILL
        assert await stage.status(execution_id) == "cancelled"
        # The broker hands it over once more, as it may.
        async with publishing(amqp_url) as publisher:
            await publisher.publish([slot_message(execution_id, 1, "scripted", Status.DELAYED)])
        await stage.system.start_executor(wait=True, **{VARIABLE: ""})
        (told,) = await stage.told(execution_id)
        assert (told.body["status"], told.body["attempt"], told.app_id) == ("cancelled", 1, "executor")
        assert await stage.ended(execution_id) == ["cancelled"]
        total = await stage.history.value("SELECT sum(total_completed) FROM action_queue")
        assert (total, await stage.history.faults()) == (1, [])
