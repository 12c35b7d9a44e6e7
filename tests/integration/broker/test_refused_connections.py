"""A connection that is refused names what is wrong and the remedy, to the reader of a log and of /readyz."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from aiormq.exceptions import ProbableAuthenticationError

from tests.support.broker_administration import close_connections
from tests.support.brokers import message, running
from tests.support.traffic import in_background, until
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link, _Closed
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_executor
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.localservers.ports import free_port
from turnstile.localservers.rabbitmq import RabbitServer


async def broker_error(url: str) -> str:
    """Connect until the first failure; return it."""
    connection = BrokerConnection(url, name="test", timeouts=BrokerTimeouts())
    async with in_background(connection.run(_never_serve)):
        await until(lambda: connection.last_error is not None, "an error of the connection")
    return str(connection.last_error)


async def database_error(url: str) -> str:
    """Connect until the first failure; return it."""
    database = Database(url, application_name="test")
    async with in_background(database.open()):
        await until(lambda: database.last_error != "not connected yet", "an error of the database")
    return str(database.last_error)


def _with_login(url: str, login: str) -> str:
    scheme, rest = url.split("://")
    return f"{scheme}://{login}@{rest.split('@')[1]}"


async def test_a_login_a_vhost_and_a_port_that_are_wrong(amqp_url: str, database_url: str) -> None:
    error = await broker_error(_with_login(amqp_url, "nobody:secret-word"))
    assert error == (
        "the broker refuses the user 'nobody' or its password: correct TURNSTILE_AMQP_URL, "
        "or create the accounts with 'executor setup-permissions'"
    )
    error = await broker_error(f"{amqp_url.rsplit('/', 1)[0]}/{quote('no such', safe='')}")
    assert error == (
        "the broker has no vhost 'no such': create it with 'rabbitmqctl add_vhost 'no such'', or correct "
        "TURNSTILE_AMQP_URL"
    )
    host = database_url.split("@")[1].split("/", maxsplit=1)[0]
    error = await broker_error(f"amqp://user:password@{host}/")
    assert "TURNSTILE_AMQP_URL names a port that is not that of AMQP" in error


async def test_a_limit_of_the_vhost_or_of_the_user_is_named_with_the_command_that_raises_it(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    parts = urlsplit(controlled_amqp_url)
    vhost, user = parts.path[1:], str(parts.username)
    remedy = "raise that limit ('rabbitmqctl set_vhost_limits' or 'set_user_limits'"
    controlled_broker.ctl("set_vhost_limits", "-p", vhost, '{"max-connections": 0}')
    error = await broker_error(controlled_amqp_url)
    assert f"access to vhost '{vhost}' refused for user '{user}': connection limit (0) is reached" in error
    assert remedy in error
    controlled_broker.ctl("clear_vhost_limits", "-p", vhost)
    try:
        controlled_broker.ctl("set_user_limits", user, '{"max-connections": 0}')
        error = await broker_error(controlled_amqp_url)
        assert f"connection refused for user '{user}': user connection limit (0) is reached" in error
        assert remedy in error
        controlled_broker.ctl("clear_user_limits", user, "all")
        controlled_broker.ctl("set_user_limits", user, '{"max-channels": 1}')
        error = await _error_of_session(controlled_amqp_url, _open_two_channels)
        assert f"number of channels opened for user '{user}' has reached the maximum allowed" in error
        assert remedy in error
    finally:
        controlled_broker.ctl("clear_user_limits", user, "all")


async def test_the_reason_of_a_broker_that_closes_a_connection_is_kept(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    vhost = urlsplit(controlled_amqp_url).path[1:]

    async def be_closed(link: Link) -> None:
        link.serving()
        # The management plugin learns of a connection with a delay.
        await until(lambda: close_connections(controlled_broker, vhost) > 0, "a connection to close")
        await asyncio.wait({link.gone}, timeout=10.0)

    error = await _error_of_session(controlled_amqp_url, be_closed)
    assert error.startswith("CONNECTION_FORCED - ")


async def test_a_message_that_is_too_large_for_the_broker_is_named_with_the_setting_that_allows_it(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    set_size = "application:set_env(rabbit, max_message_size, %s)."
    before = controlled_broker.ctl("eval", "application:get_env(rabbit, max_message_size, 134217728).")
    publisher = Publisher(controlled_amqp_url, name="test")
    controlled_broker.ctl("eval", set_size % 1000)
    try:
        async with running(publisher):
            with pytest.raises(BrokerUnavailable, match="message size 1001 is larger") as refused:
                await publisher.publish([message("q", b"x" * 1001)])
            await until(lambda: publisher.last_error is not None, "an error of the publisher")
            error = publisher.last_error
    finally:
        controlled_broker.ctl("eval", set_size % before.strip())
    assert str(error).startswith("the broker refuses a message: message size 1001 is larger than")
    assert "raise 'max_message_size' in its rabbitmq.conf" in str(error)
    assert str(refused.value) == error


async def test_a_vhost_that_is_down_is_named_with_the_command_that_starts_it(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    vhost = urlsplit(controlled_amqp_url).path[1:]
    controlled_broker.ctl("eval", f'rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"{vhost}">>).')
    try:
        error = await broker_error(controlled_amqp_url)
    finally:
        controlled_broker.ctl("restart_vhost", "-p", vhost)
    assert f"vhost '{vhost}' is down: its log says why; start it with 'rabbitmqctl restart_vhost" in error


async def test_an_account_without_a_right_is_named_once_with_the_command_that_grants_it(
    controlled_broker: RabbitServer, controlled_amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    vhost = urlsplit(controlled_amqp_url).path[1:]
    caplog.set_level(logging.INFO, "turnstile.common.broker")
    controlled_broker.ctl("add_user", "reader", "secret-word")
    try:
        controlled_broker.ctl("set_permissions", "-p", vhost, "reader", "^$", ".*", ".*")

        tried = 0

        async def declare(link: Link) -> None:
            nonlocal tried
            tried += 1
            await link.declare(declare_executor)

        url = _with_login(controlled_amqp_url, "reader:secret-word")
        pauses = BrokerTimeouts(backoff_first_seconds=0.0, backoff_max_seconds=0.0)
        connection = BrokerConnection(url, name="test", timeouts=pauses)
        async with in_background(connection.run(declare)):
            await until(lambda: tried > 5, "several attempts")
    finally:
        controlled_broker.ctl("delete_user", "reader")
    assert connection.last_error == (
        "the broker refuses an account its right: "
        f"access to exchange 'executions' in vhost '{vhost}' refused for user 'reader'; "
        "'executor setup-permissions' grants configure, write and read as Turnstile needs them"
    )
    assert [each.getMessage() for each in _ours(caplog)] == ["broker_unavailable"]


def _ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.startswith("turnstile.")]


async def _error_of_session(url: str, serve: Callable[[Link], Awaitable[None]]) -> str:
    connection = BrokerConnection(url, name="test", timeouts=BrokerTimeouts())
    async with in_background(connection.run(serve)):
        await until(lambda: connection.last_error is not None, "an error of the connection")
        return str(connection.last_error)


async def _open_two_channels(link: Link) -> None:
    await link.open_channel()
    await link.open_channel()


async def test_a_port_where_no_server_listens() -> None:
    port = free_port()
    assert (await broker_error(f"amqp://user:password@127.0.0.1:{port}/")).endswith(
        f"('127.0.0.1', {port}): no server accepts connections there; start RabbitMQ, whose log "
        "says why it ended, or correct TURNSTILE_AMQP_URL"
    )
    assert (await database_error(f"postgresql://user@127.0.0.1:{port}/turnstile")).endswith(
        f"('127.0.0.1', {port}): no server accepts connections there; start PostgreSQL, whose log "
        "says why it ended, or correct TURNSTILE_DATABASE_URL"
    )


async def test_a_user_and_a_database_that_do_not_exist(database_url: str) -> None:
    error = await database_error(_with_login(database_url, "nobody"))
    assert error.startswith(
        'role "nobody" does not exist: correct TURNSTILE_DATABASE_URL, create the accounts'
    )
    error = await database_error(f"{database_url.rsplit('/', 1)[0]}/no_such")
    assert error == (
        "database \"no_such\" does not exist: create it with 'createdb' and then run 'executor migrate', "
        "or correct TURNSTILE_DATABASE_URL"
    )


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, application_name="test")
    await database.open()
    yield database
    await database.close()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("25006", "the server is a standby or read-only; name the primary in TURNSTILE_DATABASE_URL"),
        ("28P01", "correct TURNSTILE_DATABASE_URL, or set the password with 'executor setup-permissions'"),
        ("53300", "raise max_connections of the server, or the CONNECTION LIMIT of the role or database"),
    ],
)
async def test_an_error_of_the_server_is_an_outage_with_its_remedy(
    database: Database, code: str, remedy: str
) -> None:
    with pytest.raises(Unavailable, match=f"database: no: {remedy}") as unavailable:
        await database.fetchval(f"DO $$BEGIN RAISE 'no' USING ERRCODE = '{code}'; END$$")
    assert isinstance(unavailable.value.__cause__, asyncpg.PostgresError)
    assert await database.fetchval("SELECT 1") == 1
    assert database.last_error is None


# Fails as on a full disk while a row is there; each time another file is named.
_WRITE = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM public.full_disk) THEN
        RAISE 'could not extend file "base/1/%"', nextval('public.file')
            USING ERRCODE = 'disk_full', HINT = 'Check free disk space.';
    END IF;
END
$$"""


async def test_a_full_disk_is_an_outage_until_the_refused_statement_succeeds(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "turnstile.common.database")
    remedy = "free space on the database server; nothing is lost, and work continues by itself"
    await database.fetch("CREATE TABLE public.full_disk AS SELECT 1")
    await database.fetch("CREATE SEQUENCE public.file")
    for statement in (_WRITE, f"{_WRITE} -- another", _WRITE):
        with pytest.raises(Unavailable, match=f'database: could not extend file "base/1/.*": {remedy}'):
            await database.fetch(statement)
        # Reads succeed on a full disk, and so do writes into pages that have space.
        assert await database.fetchval("SELECT 1") == 1
        assert remedy in (database.last_error or "")
    await database.fetch("DELETE FROM public.full_disk")
    await database.fetch(_WRITE)
    assert remedy in (database.last_error or "")
    assert [record.getMessage() for record in caplog.records] == ["database_disk_full"]
    await database.fetch(f"{_WRITE} -- another")
    assert database.last_error is None
    assert [record.getMessage() for record in caplog.records][1:] == ["database_disk_full_over"]


async def test_one_cause_is_one_episode_in_the_log_however_its_text_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[Exception] = []

    async def refuse(_: BrokerConnection) -> NoReturn:
        number = len(attempts)
        attempts.append(ConnectionRefusedError() if number < 50 else ProbableAuthenticationError())
        if number >= 100:
            # Of one class, with reasons of the broker.
            attempts[-1] = _Closed("NOT_ALLOWED - no vhost" if number < 150 else "NOT_ALLOWED - no access")
        raise BrokerUnavailable(f"node {number} says no") from attempts[-1]

    monkeypatch.setattr(BrokerConnection, "_connect", refuse)
    pauses = BrokerTimeouts(backoff_first_seconds=0.0, backoff_max_seconds=0.0)
    connection = BrokerConnection("amqp://127.0.0.1", name="test", timeouts=pauses)
    async with in_background(connection.run(_never_serve)):
        await until(lambda: len(attempts) > 200, "two hundred attempts")
    errors = [record.__dict__["error"] for record in caplog.records]
    assert errors == [f"node {number} says no" for number in (0, 50, 100, 150)]


async def _never_serve(_: Link) -> None:
    raise AssertionError("nothing is connected")
