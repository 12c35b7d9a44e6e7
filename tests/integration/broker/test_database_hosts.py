"""Several hosts in the URL: one that is silent or gone holds up the first connection, and no later one."""

import time
from urllib.parse import urlsplit

from tests.support.cable import cable_to
from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.localservers.ports import free_port

_TIMEOUTS = DatabaseTimeouts(connect_seconds=1.0, acquire_seconds=1.5, close_seconds=0.5)


def _with_hosts(url: str, *hosts: str) -> str:
    parts = urlsplit(url)
    account, at, last = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{account}{at}{','.join([*hosts, last])}").geturl()


async def test_a_host_that_says_nothing_and_one_that_is_gone_are_passed_by(database_url: str) -> None:
    async with cable_to(database_url) as silent:
        silent.freeze()
        hosts = [urlsplit(silent.url).netloc.rpartition("@")[2], f"127.0.0.1:{free_port()}"]
        url = _with_hosts(database_url, *hosts)
        database = Database(url, application_name="test", connections_max=2, timeouts=_TIMEOUTS)
        await database.open()
        try:
            began = time.monotonic()
            async with database.transaction(), database.transaction():
                pass
            assert time.monotonic() - began < _TIMEOUTS.connect_seconds
        finally:
            await database.close()
