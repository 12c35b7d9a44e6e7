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
from pamqp.common import FieldTable

from tests.integration.localservers.watching import processes_of, wait_until
from turnstile.localservers import LocalServers
from turnstile.localservers.servers import ScratchFolder

QUORUM: FieldTable = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def own() -> Iterator[LocalServers]:
    with LocalServers.start() as servers:
        yield servers


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the servers' accounts can reach, unlike that of pytest."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o711)
        yield Path(path)


async def publish(url: str, body: bytes) -> None:
    async with asyncio.timeout(20), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("jobs", durable=True, arguments=QUORUM)
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "jobs")


async def take(url: str) -> bytes:
    async with asyncio.timeout(20), await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("jobs", durable=True, arguments=QUORUM)
        message = await queue.get(timeout=10)
        await message.ack()
        return message.body


def knows_its_quorum_queues(folder: Path) -> bool:
    """Whether the broker has saved the list of its quorum queues, which it does seconds after a change."""
    return any(b"kept_jobs" in names.read_bytes() for names in folder.glob("data/*/quorum/*/names.dets"))


async def query(url: str, statement: str) -> object:
    async with asyncio.timeout(20):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_committed_rows_survive_a_restart_of_postgresql(own: LocalServers, mode: str) -> None:
    url = own.postgresql.create_database(f"restart_{mode}")
    await query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    before = own.postgresql.pid
    own.postgresql.restart("fast" if mode == "fast" else "immediate")
    assert own.postgresql.pid != before
    assert await query(url, "SELECT answer FROM kept") == 42


@pytest.mark.whole
async def test_the_last_commit_survives_a_crash_of_a_server_that_is_not_durable() -> None:
    with LocalServers.start(durable=False) as quick:
        url = quick.postgresql.url()
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept (number int)")
        for number in range(50):
            await connection.execute("INSERT INTO kept VALUES ($1)", number)
        quick.postgresql.restart("immediate")
        assert await query(url, "SELECT count(*) FROM kept") == 50
        connection.terminate()


async def test_a_database_is_a_copy_of_its_template_and_can_be_dropped_while_in_use(
    own: LocalServers,
) -> None:
    template = own.postgresql.create_database("pattern")
    await query(template, "CREATE TABLE kept AS SELECT 42 AS answer")
    copy = await asyncpg.connect(own.postgresql.create_database("copy", "pattern"))
    assert await copy.fetchval("SELECT answer FROM kept") == 42
    own.postgresql.drop_database("copy")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await query(own.postgresql.url("copy"), "SELECT 1")
    await copy.close()


async def test_a_frozen_postgresql_answers_again_after_resume(own: LocalServers) -> None:
    connection = await asyncpg.connect(own.postgresql.url())
    own.postgresql.pause()
    try:
        answer = asyncio.create_task(connection.fetchval("SELECT 42"), name="answer")
        done, _ = await asyncio.wait([answer], timeout=0.3)
        assert not done
    finally:
        own.postgresql.resume()
    assert await asyncio.wait_for(answer, 10) == 42
    await connection.close()


@pytest.mark.whole
async def test_confirmed_messages_survive_a_kill_of_rabbitmq(own: LocalServers) -> None:
    url = own.rabbitmq.create_vhost("kept")
    await publish(url, b"42")
    await asyncio.to_thread(wait_until, lambda: knows_its_quorum_queues(own.rabbitmq.folder))
    own.rabbitmq.kill()
    own.rabbitmq.restart()
    assert await take(url) == b"42"


async def test_vhosts_can_be_created_and_deleted_and_their_connections_closed(own: LocalServers) -> None:
    connection = await aio_pika.connect(own.rabbitmq.create_vhost("a/b c"))
    closed = asyncio.Event()
    connection.close_callbacks.add(lambda *_: closed.set())
    await asyncio.to_thread(wait_until, lambda: own.rabbitmq.close_connections("a/b c") == 1)
    await asyncio.wait_for(closed.wait(), 10)
    own.rabbitmq.delete_vhost("a/b c")
    assert "a/b c" not in own.rabbitmq.ctl("list_vhosts", "--quiet")
    own.rabbitmq.delete_vhost("a/b c")


async def test_a_policy_applies_to_the_named_queues_until_it_is_deleted(own: LocalServers) -> None:
    own.rabbitmq.create_vhost("ruled")
    own.rabbitmq.set_policy("ruled", "small", "^small$", {"max-length": 5, "overflow": "reject-publish"})
    listed = await asyncio.to_thread(own.rabbitmq.ctl, "list_policies", "--quiet", "--vhost", "ruled")
    assert '{"max-length":5,"overflow":"reject-publish"}' in listed
    own.rabbitmq.delete_policy("ruled", "small")
    own.rabbitmq.delete_policy("ruled", "small")
    assert "small" not in await asyncio.to_thread(
        own.rabbitmq.ctl, "list_policies", "--quiet", "--vhost", "ruled"
    )
    own.rabbitmq.delete_vhost("ruled")


@pytest.mark.whole
def test_two_instances_run_in_parallel_and_leave_nothing(own: LocalServers) -> None:
    with LocalServers.start(durable=False) as other:
        assert other.postgresql.port != own.postgresql.port
        other.rabbitmq.create_vhost("here")
        assert "here" not in own.rabbitmq.ctl("list_vhosts", "--quiet")
        assert len(processes_of(other.folder)) > 5
    assert processes_of(other.folder) == {}
    assert not other.folder.exists()
    assert own.rabbitmq.is_ready()


@pytest.mark.whole
def test_a_given_folder_is_kept_and_used_again(folder: Path) -> None:
    with LocalServers.start(folder) as servers:
        servers.postgresql.create_database("kept")
        servers.rabbitmq.create_vhost("kept")
    assert processes_of(folder) == {}
    with LocalServers.start(folder) as servers:
        assert asyncio.run(query(servers.postgresql.url("kept"), "SELECT 1")) == 1
        assert "kept" in servers.rabbitmq.ctl("list_vhosts", "--quiet")


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
