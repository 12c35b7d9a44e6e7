"""Private servers as a whole: both start, keep data over restarts, and leave nothing behind."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import asyncpg
import pytest

from tests.integration.localservers.watching import processes_of, wait_until
from tests.support.broker_administration import close_connections
from turnstile.localservers import (
    LocalServers,
    LocalServersError,
    PostgresServer,
    RabbitServer,
    servers_for_tests,
)
from turnstile.localservers.servers import SERVER_URLS, ScratchFolder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the servers' accounts can reach, unlike that of pytest."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o711)
        yield Path(path)


async def query(url: str, statement: str) -> object:
    async with asyncio.timeout(20):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


async def connected(url: str) -> None:
    async with asyncio.timeout(20), await aio_pika.connect(url):
        pass


async def test_vhosts_can_be_created_and_deleted_and_their_connections_closed(
    controlled_broker: RabbitServer,
) -> None:
    broker = controlled_broker
    connection = await aio_pika.connect(broker.create_vhost("a/b c"))
    closed = asyncio.Event()
    connection.close_callbacks.add(lambda *_: closed.set())
    await asyncio.to_thread(wait_until, lambda: close_connections(broker, "a/b c") == 1)
    await asyncio.wait_for(closed.wait(), 10)
    broker.delete_vhost("a/b c")
    assert "a/b c" not in broker.ctl("list_vhosts", "--quiet")
    broker.delete_vhost("a/b c")


@pytest.mark.whole
def test_two_instances_run_in_parallel_and_leave_nothing() -> None:
    with LocalServers.start(durable=False) as own:
        with LocalServers.start(durable=False) as other:
            assert other.postgresql.port != own.postgresql.port
            other.rabbitmq.create_vhost("here")
            assert "here" not in own.rabbitmq.ctl("list_vhosts", "--quiet")
            assert len(processes_of(other.folder)) > 5
        assert processes_of(other.folder) == {}
        assert not other.folder.exists()
        assert own.rabbitmq.is_ready()


def test_a_given_folder_is_kept_and_used_again(folder: Path) -> None:
    for number in range(2):
        server = PostgresServer.start(folder / "postgresql")
        try:
            assert server.has_database("kept") == (number > 0)
            if not number:
                server.create_database("kept")
        finally:
            server.stop()
    assert processes_of(folder) == {}


@pytest.mark.whole
def test_a_given_folder_of_both_servers_is_kept_and_used_again(folder: Path) -> None:
    with LocalServers.start(folder) as servers:
        servers.postgresql.create_database("kept")
        servers.rabbitmq.create_vhost("kept")
    assert processes_of(folder) == {}
    with LocalServers.start(folder) as servers:
        assert asyncio.run(query(servers.postgresql.url("kept"), "SELECT 1")) == 1
        asyncio.run(connected(servers.rabbitmq.url("kept")))


# `test_processes.py` and `test_scratch.py` hold the parts.
@pytest.mark.whole
def test_nothing_is_left_after_the_owner_was_killed_and_another_started() -> None:
    code = """
import signal
from turnstile.localservers import LocalServers
print(LocalServers.start(durable=False).folder, flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert len(processes_of(folder)) > 5
        owner.kill()
    wait_until(lambda: processes_of(folder) == {})
    ScratchFolder.create().delete()
    assert not folder.exists()


def test_the_urls_of_servers_for_tests_are_set_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SERVER_URLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TURNSTILE_TEST_AMQP_URL", "amqp://localhost")
    expected = (
        "TURNSTILE_TEST_DATABASE_URL, TURNSTILE_TEST_MANAGEMENT_URL: not set, but TURNSTILE_TEST_AMQP_URL is"
    )
    with pytest.raises(LocalServersError, match=expected), servers_for_tests():
        pass
