"""A newer protocol beside older services costs nothing but time."""

from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from tests.support.environment import StartEnvironment
from tests.support.history import session_of
from tests.support.steady import steady
from turnstile.common.statements import installation_text


@pytest.mark.whole
async def test_installing_the_same_or_a_newer_protocol_under_load_loses_nothing(
    start_env: StartEnvironment, database_url: str, tmp_path: Path
) -> None:
    async with start_env(executors=2, workers=2) as env:
        async with steady(env.amqp_url, tmp_path) as client:
            await client.continues("the start")
            for text in (installation_text(), _grown(installation_text())) * 3:
                await client.submit_fast(24)
                await _install(database_url, text)
            await client.continues("all the others")
        await client.all_ran_once_in_order(env.history)
        assert await env.history.value("SELECT count(*) FROM worker WHERE lost_at IS NULL") == 2


def _grown(text: str) -> str:
    """Return a later protocol: one more field in a row, one more parameter of a function."""
    for old, new in (
        (
            "is offered again.\n    waited_seconds double precision\n",
            "is offered again.\n    waited_seconds double precision,\n    priority integer\n",
        ),
        ("s.waited_seconds)::turnstile.granted", "s.waited_seconds, 7)::turnstile.granted"),
        ("e.traceparent, NULL::double precision\n", "e.traceparent, NULL::double precision, 7\n"),
        (
            "extract(epoch FROM o.granted_at - e.queued_at)::double precision END\n",
            "extract(epoch FROM o.granted_at - e.queued_at)::double precision END, 7\n",
        ),
        (
            "in_lease_seconds double precision, OUT",
            "in_lease_seconds double precision, in_x int DEFAULT 7, OUT",
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return text


async def _install(database_url: str, text: str) -> None:
    async with session_of(database_url) as connection:
        while True:
            # A deadlock with a service changes nothing; `migrate` repeats it too.
            with suppress(asyncpg.DeadlockDetectedError):
                await connection.execute(text)
                return
