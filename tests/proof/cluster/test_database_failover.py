"""P1 to P7 while the primary is lost for ever and its standby is promoted; no service restarts."""

import asyncio
from pathlib import Path

import pytest

from tests.proof.cluster.loaded import loaded
from turnstile.localservers import PostgresServer
from turnstile.migrations import migrate

SECONDS = 6.0


@pytest.mark.timeout(240)
async def test_a_lost_primary_costs_nothing_but_the_time_until_its_standby_is_promoted(
    amqp_url: str, folder: Path
) -> None:
    primary = await asyncio.to_thread(PostgresServer.start, folder / "primary", durable=False)
    try:
        await migrate(primary.create_database("turnstile"))
        standby = await asyncio.to_thread(PostgresServer.follow, primary, folder / "standby", durable=False)
        try:
            # What was answered is on both servers: an acknowledged submit survives the loss of either (P5).
            primary.wait_for_standby()
            url = primary.url("turnstile").replace(
                f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}"
            )
            url = f"{url}?target_session_attrs=primary"
            async with loaded(url, amqp_url, amqp_url_that_stays=amqp_url, seconds=SECONDS) as load:
                await load.until_begun()
                async with load.losing("the primary"):
                    await asyncio.to_thread(primary.stop, "immediate")
                    await asyncio.to_thread(standby.promote)
        finally:
            await asyncio.to_thread(standby.stop, "immediate")
    finally:
        await asyncio.to_thread(primary.stop, "immediate")
