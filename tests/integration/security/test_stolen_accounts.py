"""A service's credentials allow only that service's work: a worker's cannot submit or read tables."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import aio_pika
import asyncpg
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPError, ChannelAccessRefused
from pamqp.common import FieldTable
from yarl import URL

from tests.integration.compatibility.test_calls import statements_of
from tests.integration.security.fortress import DATABASE, Fortress
from tests.support.cases import named
from tests.support.traffic import until
from turnstile.common.broker import topology
from turnstile.common.database import Database
from turnstile.common.statements import WORKER_FUNCTIONS
from turnstile.common.tables import metadata
from turnstile.executor.service import warn_of_changeable_audit_log

pytestmark = pytest.mark.asyncio(loop_scope="package")

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]
OF_THE_OWNER = "SELECT turnstile.skip_ids($1)"
"""Made by `executor restore-check`, which runs as the owner of the tables."""
Act = Callable[[AbstractChannel], Awaitable[Any]]


@asynccontextmanager
async def channel_of(fortress: Fortress, service: str) -> AsyncIterator[AbstractChannel]:
    """A channel under the account of a service."""
    url = fortress.environments[service]["TURNSTILE_AMQP_URL"]
    async with await aio_pika.connect(url, timeout=10) as connection:
        yield await connection.channel()


async def accepted_acts(
    fortress: Fortress,
    service: str,
    acts: Iterable[tuple[str, Act]],
    refused: type[AMQPError] = ChannelAccessRefused,
) -> list[str]:
    """Try each on a channel of its own, which a refusal closes; return the names of those not refused."""
    accepted = []
    async with await aio_pika.connect(
        fortress.environments[service]["TURNSTILE_AMQP_URL"], timeout=10
    ) as connection:
        for name, act in acts:
            with suppress(refused):
                await act(await connection.channel())
                accepted.append(name)
    return accepted


@asynccontextmanager
async def session_of(fortress: Fortress, service: str) -> AsyncIterator["Session"]:
    """A session under the account of a service."""
    connection = await asyncpg.connect(fortress.environments[service]["TURNSTILE_DATABASE_URL"])
    try:
        yield connection
    finally:
        await connection.close()


def own_queue() -> str:
    return topology.worker_queue(str(uuid4()))


def request(ref: str, **headers: Any) -> aio_pika.Message:
    body = json.dumps({"action_ref": ref, "parameters": {"number": 1}}).encode()
    return aio_pika.Message(body, type="execution.requested", message_id=str(uuid4()), headers=headers)


def publishes(exchange: str, routing_key: str, **headers: Any) -> Act:
    async def act(channel: AbstractChannel) -> None:
        message = request("guarded.echo", **headers)
        if exchange:
            await (await channel.get_exchange(exchange, ensure=False)).publish(message, routing_key)
        else:
            await channel.default_exchange.publish(message, routing_key)

    return act


def reads(queue: str) -> Act:
    async def act(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).get(fail=False)

    return act


def declares(name: str) -> Act:
    return lambda channel: channel.declare_queue(name, durable=True)


def deletes(name: str) -> Act:
    return lambda channel: channel.queue_delete(name)


async def binds(channel: AbstractChannel) -> None:
    queue = await channel.declare_queue(own_queue(), arguments={"x-expires": 1000})
    await queue.bind(topology.EXECUTIONS, "execution.requested")


async def publishes_by_an_exchange_of_its_own(channel: AbstractChannel) -> None:
    exchange = await channel.declare_exchange(own_queue(), "fanout", auto_delete=True)
    executions = await channel.get_exchange(topology.EXECUTIONS, ensure=False)
    await executions.bind(exchange)
    await exchange.publish(request("guarded.echo"), "execution.requested")


async def dead_letters_from_a_queue_of_its_own(channel: AbstractChannel) -> None:
    name = own_queue()
    onward: FieldTable = {
        "x-expires": 1000,
        "x-message-ttl": 0,
        "x-dead-letter-exchange": topology.EXECUTIONS,
        "x-dead-letter-routing-key": "execution.requested",
    }
    await channel.declare_queue(name, arguments=onward)
    await channel.default_exchange.publish(request("guarded.echo"), name)


OF_NO_WORKER: dict[str, Act] = {
    "requests": publishes("executions", "execution.requested"),
    "requests a cancel": publishes("executions", "execution.cancel_requested"),
    "offers": publishes("executions", "execution.scheduled.default"),
    "publishes to a queue": publishes("", "executor.requests"),
    "requests by a delay": publishes("worker.retry", "execution.requested"),
    "requests by another delay": publishes("executor.retry", "execution.requested"),
    "publishes elsewhere": publishes("amq.topic", "execution.requested"),
    "publishes by an exchange of its own": publishes_by_an_exchange_of_its_own,
    "dead letters from a queue of its own": dead_letters_from_a_queue_of_its_own,
    "reads requests": reads("executor.requests"),
    "reads completions": reads("executor.completions"),
    "reads a delay": reads("executor.retry"),
    "reads its delay": reads("worker.retry"),
    "reads dead letters": reads("executions.dead_letters"),
    "binds": binds,
    "creates a pool": declares("worker.another-pool"),
    "creates anything": declares("anything"),
    "deletes a pool": deletes("worker.default"),
    "deletes requests": deletes("executor.requests"),
}


async def test_a_worker_account_of_the_broker_does_only_its_own_work(fortress: Fortress) -> None:
    assert await accepted_acts(fortress, "worker", OF_NO_WORKER.items()) == []


@pytest.mark.parametrize(
    ("exchange", "key"),
    [("executions", "execution.completed"), ("worker.retry", "execution.scheduled.default")],
)
async def test_a_second_routing_key_in_a_header_submits_nothing(
    fortress: Fortress, exchange: str, key: str
) -> None:
    """RabbitMQ checks the routing key but not the header CC: the executor rejects the request."""
    ref = "guarded.hold"
    message = request(ref, CC=["execution.requested"])
    message.expiration = 0.001 if exchange == "worker.retry" else None
    async with fortress.http() as http:
        before = (await http.get(f"/actions/{ref}/queue-stats")).json()["total_enqueued"]
        async with channel_of(fortress, "worker") as channel:
            try:
                await (await channel.get_exchange(exchange, ensure=False)).publish(message, key)
            except AMQPError:
                # A broker that limits them all.
                return

            async def is_dead_lettered() -> bool:
                letters = (await http.get("/dead-letters", params={"limit": 1000})).json()["items"]
                return message.message_id in {letter["message_id"] for letter in letters}

            await until(is_dead_lettered, "the request is among the dead letters")
        assert (await http.get(f"/actions/{ref}/queue-stats")).json()["total_enqueued"] == before


async def test_a_worker_role_cannot_read_a_table(fortress: Fortress) -> None:
    async with session_of(fortress, "worker") as session:
        for table in [*metadata.tables, "alembic_version"]:
            for statement in (f"SELECT * FROM {table}", f"DELETE FROM {table}"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.execute(statement)


async def test_a_worker_role_cannot_call_functions_of_the_executor(fortress: Fortress) -> None:
    query = (
        "SELECT array_agg(proname::text ORDER BY proname) FROM pg_proc"
        " WHERE pronamespace = 'turnstile'::regnamespace AND has_function_privilege(oid, 'EXECUTE')"
    )
    async with session_of(fortress, "worker") as session:
        assert await session.fetchval(query) == sorted(WORKER_FUNCTIONS)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute("SELECT turnstile.drifted_queues(0, 1)")


async def test_an_executor_role_adds_to_the_audit_log_and_changes_nothing_in_it(fortress: Fortress) -> None:
    async with session_of(fortress, "executor") as session:
        await session.execute("SELECT turnstile.log_bulk('{\"name\": \"thief\"}', 'cancelled', NULL, '{}')")
        assert await session.fetchval("SELECT count(*) FROM audit_log WHERE actor = 'thief'") == 1
        for relation in ("audit_log", "action_change", "resource_change"):
            for statement in (
                f"DELETE FROM {relation}",
                f"UPDATE {relation} SET id = 0",
                f"INSERT INTO {relation} DEFAULT VALUES",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.execute(statement)
        await session.execute("SELECT turnstile.prune_audit_log(0, 1000)")
        assert await session.fetchval("SELECT count(*) FROM audit_log WHERE actor = 'thief'") == 1


@pytest.mark.parametrize(("account", "warned"), [("executor", False), ("owner", True)])
async def test_an_executor_whose_role_may_change_the_audit_log_says_so(
    fortress: Fortress, account: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environment = fortress.owner if account == "owner" else fortress.environments[account]
    database = Database(environment["TURNSTILE_DATABASE_URL"], application_name="test")
    await database.open()
    try:
        # Without tokens no row names a user, so the log proves nothing that could be changed.
        await warn_of_changeable_audit_log(database, has_tokens=False)
        assert caplog.messages == []
        await warn_of_changeable_audit_log(database, has_tokens=True)
    finally:
        await database.close()
    assert caplog.messages == (["audit_log_changeable"] if warned else [])
    for record in caplog.records:
        assert "executor setup-permissions" in record.__dict__["reason"]


async def test_an_executor_with_an_account_of_its_own_starts_without_that_warning(fortress: Fortress) -> None:
    assert "audit_log_changeable" not in fortress.executor.log.read_text()


@pytest.mark.parametrize("service", ["executor", "worker"])
async def test_a_service_role_may_make_every_call_of_its_service(fortress: Fortress, service: str) -> None:
    calls = [call for call in statements_of(service) if call != OF_THE_OWNER]
    assert len(calls) > 5
    refused = {}
    async with session_of(fortress, service) as session:
        for call in calls:
            turn = session.transaction()
            await turn.start()
            try:
                prepared = await session.prepare(call)
                await prepared.fetch(*map(_smallest, prepared.get_parameters()))
            except asyncpg.InsufficientPrivilegeError as error:
                refused[call] = str(error)
            except asyncpg.PostgresError:
                # Refused for its values, which are not those of the service.
                pass
            finally:
                await turn.rollback()
    assert refused == {}


def _smallest(parameter: asyncpg.Type) -> Any:
    """A value of the type that selects nothing."""
    if parameter.kind == "array":
        return []
    return {"int4": 1, "int8": 0, "float8": 0.0, "bool": False, "jsonb": "[]", "text": ""}.get(parameter.name)


async def test_an_executor_role_prunes_pools(fortress: Fortress) -> None:
    async with fortress.http() as http, session_of(fortress, "executor") as session:
        for pool in ("abandoned", "default"):
            put = await http.put("/actions/guarded.pooled", json={"max_concurrent": 1, "pool": pool})
            assert put.is_success, put.text
        count = "SELECT count(*) FROM worker_pool WHERE name = 'abandoned'"
        assert await session.fetchval(count) == 1

        async def is_pruned() -> bool:
            # A transaction that gives an action its pool at this moment postpones it.
            await session.execute("SELECT turnstile.prune_pools(100)")
            return bool(await session.fetchval(count) == 0)

        await until(is_pruned, "the pool that no action names is deleted")


async def test_a_submitter_role_may_submit_and_nothing_else(fortress: Fortress) -> None:
    owner = await asyncpg.connect(fortress.owner["TURNSTILE_DATABASE_URL"])
    shop = None
    try:
        await owner.execute(
            "CREATE ROLE shop LOGIN PASSWORD 'of the shop'; GRANT turnstile_submitter TO shop"
        )
        async with fortress.http() as http:
            assert (await http.put("/actions/guarded.sold", json={})).is_success
        url = URL(fortress.owner["TURNSTILE_DATABASE_URL"]).with_user("shop").with_password("of the shop")
        shop = await asyncpg.connect(str(url))
        request_id = await shop.fetchval("SELECT turnstile.submit('guarded.sold')")

        async def is_admitted() -> bool:
            status = await shop.fetchval("SELECT status FROM turnstile.submission($1)", request_id)
            return bool(status == "admitted")

        await until(is_admitted, "the admission of the shop's submission")
        for statement in (
            "SELECT * FROM submission",
            "SELECT * FROM execution",
            "SELECT turnstile.reject_submissions('{1}', '{x}', '{y}')",
            "SELECT turnstile.prune_pools(1)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await shop.execute(statement)
    finally:
        if shop is not None:
            await shop.close()
        await owner.execute("DROP ROLE shop")
        await owner.close()


CHANGES_OF_THE_SCHEMA = (
    "CREATE TABLE mine (id int)",
    "CREATE FUNCTION turnstile.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "TRUNCATE execution CASCADE",
    "ALTER TABLE execution ADD COLUMN mine int",
    "DROP FUNCTION turnstile.sign_off",
    "UPDATE alembic_version SET version_num = '0'",
    "CREATE ROLE mine",
    f"ALTER DATABASE {DATABASE} SET search_path = mine",
    "ALTER ROLE keeper PASSWORD 'mine'",
    "COPY (SELECT 1) TO PROGRAM 'true'",
)


@pytest.mark.parametrize("service", ["executor", "worker"])
async def test_a_service_role_cannot_change_the_schema(fortress: Fortress, service: str) -> None:
    async with session_of(fortress, service) as session:
        for statement in CHANGES_OF_THE_SCHEMA:
            with named(statement), pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement)
