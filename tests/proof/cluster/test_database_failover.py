"""P1 to P7 while the primary is lost for ever and its standby is promoted; no service restarts."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.proof.cluster.loaded import loaded
from tests.support.history import session_of
from turnstile.localservers import PostgresServer
from turnstile.localservers.binaries import find_postgresql
from turnstile.localservers.processes import run_once, server_folder, server_user
from turnstile.migrations.origin import changes_of_origin, present_origin, recorded_origin
from turnstile.migrations.run import migrate

SECONDS = 6.0


@pytest.mark.timeout(240)
async def test_a_lost_primary_costs_nothing_but_the_time_until_its_standby_is_promoted(
    amqp_url: str, folder: Path
) -> None:
    primary = await asyncio.to_thread(PostgresServer.start, folder / "primary", durable=False)
    try:
        await migrate(primary.create_database("turnstile"))
        standby = await asyncio.to_thread(standby_of, primary, folder / "standby")
        try:
            # What was answered is on both servers: an acknowledged submit survives the loss of either (P5).
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            primary.execute("SELECT pg_reload_conf()")
            url = primary.url("turnstile").replace(
                f":{primary.port}", f":{primary.port},127.0.0.1:{standby.port}"
            )
            url = f"{url}?target_session_attrs=primary"
            async with loaded(url, amqp_url, amqp_url_that_stays=amqp_url, seconds=SECONDS) as load:
                await load.until_begun()
                async with load.losing("the primary"):
                    await asyncio.to_thread(primary.stop, "immediate")
                    await asyncio.to_thread(standby.execute, "SELECT pg_promote(true, 60)")
            assert "is a promoted standby" in await _change_of_origin(standby.url("turnstile"))
        finally:
            await asyncio.to_thread(standby.stop, "immediate")
    finally:
        await asyncio.to_thread(primary.stop, "immediate")


async def _change_of_origin(url: str) -> str:
    """Return how `executor restore-check` recognises the database: it may have lost the last commits."""
    async with session_of(url) as connection:
        recorded = await recorded_origin(connection)
        assert recorded is not None
        return "".join(changes_of_origin(recorded, await present_origin(connection)))


def standby_of(primary: PostgresServer, folder: Path) -> PostgresServer:
    """Start a standby of `primary`: it replays every change and accepts reads."""
    user = server_user("postgres")
    server_folder(folder, user)
    # Beside the real `postgres`, not beside a wrapper of it.
    program = (find_postgresql() / "postgres").resolve().with_name("pg_basebackup")
    copy = [str(program), f"--dbname={primary.url()}", f"--pgdata={folder / 'data'}"]
    command = [*copy, "--write-recovery-conf", "--checkpoint=fast"]
    run_once(command, folder=folder, environment={"HOME": str(folder), "PATH": os.defpath}, user=user)
    return PostgresServer.start(folder, durable=False)
