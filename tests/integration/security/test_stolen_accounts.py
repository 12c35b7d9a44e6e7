"""A service's credentials allow only its work: a worker's cannot submit, read, or speak for another one."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import aio_pika
import asyncpg
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPError, ChannelAccessRefused, ChannelLockedResource
from pamqp.common import FieldTable
from yarl import URL

from tests.integration.security.fortress import DATABASE, VHOST, Fortress
from tests.integration.security.test_fortress import read, submit, until_status
from tests.support.traffic import until
from turnstile.common.broker import topology
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.report_wire import EXECUTION_LOG, LogPiece, encode_log
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    Heartbeat,
    Hello,
    Leaving,
    Report,
    ReportBody,
    Sender,
)
from turnstile.common.worker_wire import (
    WORKER_HEARTBEAT,
    WORKER_HELLO,
    WORKER_REPORTS,
    encode_heartbeat,
    encode_reports,
)
from turnstile.executor.service import warn_of_changeable_audit_log

pytestmark = pytest.mark.asyncio(loop_scope="package")

if TYPE_CHECKING:
    Session: TypeAlias = asyncpg.Connection[asyncpg.Record]
Act = Callable[[AbstractChannel], Awaitable[Any]]


@contextmanager
def named(case: object) -> Iterator[None]:
    """Add the case to what fails in this block."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"case: {case}")
        raise


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


def own_name() -> str:
    """A name that a worker's account may give to a queue or an exchange."""
    return topology.session_queue(str(uuid4()), 1)


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


def purges(queue: str) -> Act:
    async def act(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).purge()

    return act


def declares(name: str) -> Act:
    return lambda channel: channel.declare_queue(name, durable=True)


def deletes(name: str) -> Act:
    return lambda channel: channel.queue_delete(name)


def binds(exchange: str, routing_key: str) -> Act:
    async def act(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue(own_name(), exclusive=True)
        await queue.bind(exchange, routing_key)

    return act


def publishes_by_an_exchange_of_its_own(exchange: str, routing_key: str) -> Act:
    async def act(channel: AbstractChannel) -> None:
        own = await channel.declare_exchange(own_name(), "fanout", auto_delete=True)
        await (await channel.get_exchange(exchange, ensure=False)).bind(own)
        await own.publish(request("guarded.echo"), routing_key)

    return act


async def dead_letters_from_a_queue_of_its_own(channel: AbstractChannel) -> None:
    onward: FieldTable = {
        "x-expires": 1000,
        "x-dead-letter-exchange": topology.EXECUTIONS,
        "x-dead-letter-routing-key": "execution.requested",
    }
    await channel.declare_queue(own_name(), arguments=onward)


OF_NO_WORKER: dict[str, Act] = {
    "requests": publishes("executions", "execution.requested"),
    "requests a cancel": publishes("executions", "execution.cancel_requested"),
    "tells listeners of an end": publishes("executions", "execution.completed"),
    "tells listeners of a change": publishes("executions", "execution.status_changed"),
    "requests directly": publishes("executor.requests", "execution.requested"),
    "asks the leader": publishes("executor.questions", ""),
    "publishes to a queue": publishes("", "executor.requests"),
    "orders a worker": publishes("", own_name()),
    "publishes dead letters": publishes("executions.dlx", "execution.requested"),
    "publishes elsewhere": publishes("amq.topic", "execution.requested"),
    "requests by an exchange of its own": publishes_by_an_exchange_of_its_own(
        topology.EXECUTIONS, "execution.requested"
    ),
    "reports by an exchange of its own": publishes_by_an_exchange_of_its_own(
        topology.EXECUTOR, topology.EXECUTOR_COMPLETIONS
    ),
    "dead letters from a queue of its own": dead_letters_from_a_queue_of_its_own,
    **{
        f"{act.__name__} {queue}": act(queue)
        for queue in (
            "executor.requests", "executor.completions", "executor.heartbeats", "executor.reports",
            "executions.dead_letters",
        )
        for act in (reads, purges, deletes)
    },
    "listens to requests": binds("executions", "execution.requested"),
    "listens to ends": binds("executions", "execution.completed"),
    "listens to reports": binds("executor", "executor.completions"),
    "listens to questions": binds("executor.questions", ""),
    "creates anything": declares("anything"),
    "creates a queue of no session": declares("worker.default"),
}  # fmt: skip


async def test_a_worker_account_of_the_broker_does_only_its_own_work(fortress: Fortress) -> None:
    assert await accepted_acts(fortress, "worker", OF_NO_WORKER.items()) == []


async def test_a_second_routing_key_in_a_header_reaches_no_other_queue(fortress: Fortress) -> None:
    """RabbitMQ checks no key in the header CC; nothing but the leader's queues is bound to the exchange."""
    ref = "guarded.hold"
    message = request(ref, CC=["execution.requested", "executor.requests"])
    async with fortress.http() as http:
        before = (await http.get(f"/actions/{ref}/queue-stats")).json()["total_enqueued"]
        async with channel_of(fortress, "worker") as channel:
            exchange = await channel.get_exchange(topology.EXECUTOR, ensure=False)
            await exchange.publish(message, topology.EXECUTOR_COMPLETIONS)

        async def is_dead_lettered() -> bool:
            letters = (await http.get("/dead-letters", params={"limit": 1000})).json()["items"]
            return [letter["message_id"] for letter in letters].count(message.message_id) == 1

        await until(is_dead_lettered, "the request is among the dead letters, once")
        assert (await http.get(f"/actions/{ref}/queue-stats")).json()["total_enqueued"] == before


def sessions_of(fortress: Fortress) -> list[str]:
    """The queues of the sessions of workers, as the broker's administrator sees them."""
    found = fortress.servers.rabbitmq.call("GET", f"/api/queues/{VHOST}").json()
    return [queue["name"] for queue in found if queue["name"].startswith("worker.")]


async def test_the_queue_of_another_worker_is_its_own(fortress: Fortress) -> None:
    (session,) = sessions_of(fortress)
    acts = [(act.__name__, act(session)) for act in (reads, purges, deletes, declares)]
    assert await accepted_acts(fortress, "worker", acts, ChannelLockedResource) == []


async def reports(channel: AbstractChannel, *bodies: ReportBody, sender: Sender) -> None:
    """Publish as a worker does."""
    exchange = await channel.get_exchange(topology.EXECUTOR, ensure=False)
    for number, body in enumerate(bodies, 1):
        report = Report(sender=sender, number=number, kept_from=1, epoch_seen=1, body=body)
        message = aio_pika.Message(encode_reports([report]), type=WORKER_REPORTS)
        await exchange.publish(message, topology.EXECUTOR_COMPLETIONS)


async def test_nothing_is_believed_without_the_secret_of_the_worker(fortress: Fortress) -> None:
    """Who knows everything of another worker but its secret ends, returns, logs and stops nothing of it."""
    async with fortress.http() as http, session_of(fortress, "executor") as session:
        held = await submit(http, "guarded.hold")
        shown = await until_status(http, held, "running")
        (row,) = await session.fetch("SELECT * FROM ledger.live WHERE id = $1", held)
        of_worker = "SELECT * FROM ledger.worker WHERE worker_id = $1"
        (worker,) = await session.fetch(of_worker, row["worker_id"])
        grant = Grant(row["grant_epoch"], row["grant_counter"])
        thief = Sender(worker_id=row["worker_id"], session=worker["session"], secret="a guess")
        hello = Hello(
            sender=Sender(worker_id=row["worker_id"], session=worker["session"] + 1, secret="a guess"),
            name="thief", pools=("default",), actions=None, concurrency=9, lease_seconds=3600.0, epoch_seen=1,
        )  # fmt: skip
        heartbeat = Heartbeat(sender=thief, number=10**6, epoch_seen=1, received=0, is_taking=False)
        log = LogPiece(execution_id=held, grant=grant, attempt=1, start=0, text="made up")
        ended = AttemptEnded(execution_id=held, grant=grant, status=Status.COMPLETED, result=b'"made up"')
        async with channel_of(fortress, "worker") as channel:
            exchange = await channel.get_exchange(topology.EXECUTOR, ensure=False)
            for kind, key, body in (
                (WORKER_HELLO, topology.EXECUTOR_HEARTBEATS, encode_heartbeat(hello)),
                (WORKER_HEARTBEAT, topology.EXECUTOR_HEARTBEATS, encode_heartbeat(heartbeat)),
                (EXECUTION_LOG, topology.EXECUTOR_REPORTS, encode_log(thief, [log])),
            ):
                await exchange.publish(aio_pika.Message(body, type=kind), key)
            returned = AttemptReturned(execution_id=held, grant=grant, had_started=True)
            await reports(channel, ended, returned, Leaving(), sender=thief)
        # The end of the second of these comes behind all that.
        for child in [await submit(http, "guarded.child", number=number) for number in range(2)]:
            await until_status(http, child, "completed")
        assert (await read(http, held))["status"] == "running"
        assert shown["worker_id"] == row["worker_id"]
        (after,) = await session.fetch(of_worker, row["worker_id"])
        assert (after["session"], after["secret_hash"], after["is_taking"]) == (
            worker["session"], worker["secret_hash"], True,
        )  # fmt: skip
        # The worker is still heard, and hears the leader.
        await http.post(f"/executions/{held}/cancel", json={})
        ended_row = await until_status(http, held, "cancelled")
        assert ended_row["result"] is None
        assert "made up" not in (await http.get(f"/executions/{held}/logs")).text


async def test_the_accounts_of_workers_and_clients_have_no_database(fortress: Fortress) -> None:
    for service in ("worker", "client"):
        assert list(fortress.environments[service]) == ["TURNSTILE_AMQP_URL"]
    async with session_of(fortress, "executor") as session:
        roles = await session.fetch("SELECT rolname FROM pg_roles WHERE rolname ~ '^turnstile'")
    assert {row["rolname"] for row in roles} == {
        "turnstile-executor", "turnstile_executor", "turnstile_submitter",
    }  # fmt: skip


async def test_an_executor_role_adds_to_the_audit_log_and_changes_nothing_in_it(fortress: Fortress) -> None:
    insert = (
        "INSERT INTO ledger.audit_log (actor, verb, subject_kind, subject, before, after, recorded_at)"
        " VALUES ('thief', 'cancelled', 'executions', '', '{}', '{}', now() - interval '20 d')"
    )
    async with session_of(fortress, "executor") as session:
        await session.execute(insert)
        for statement in (
            "DELETE FROM ledger.audit_log",
            "UPDATE ledger.audit_log SET actor = ''",
            "TRUNCATE ledger.audit_log",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement)
        await session.execute("SELECT ledger.prune_audit_log(0, 1000)")
        assert await session.fetchval("SELECT count(*) FROM ledger.audit_log WHERE actor = 'thief'") == 1


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


async def test_an_executor_role_has_the_rights_that_its_service_needs(fortress: Fortress) -> None:
    lacking = (
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'ledger'::regnamespace"
        " AND c.relkind IN ('r', 'v') AND c.relname <> 'audit_log'"
        " AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        "          AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))"
    )
    functions = (
        "SELECT p.oid::regprocedure::text FROM pg_proc p"
        " WHERE p.pronamespace IN ('ledger'::regnamespace, 'turnstile'::regnamespace)"
        " AND NOT has_function_privilege(p.oid, 'EXECUTE')"
    )
    async with session_of(fortress, "executor") as session:
        assert await session.fetch(lacking) == []
        assert await session.fetch(functions) == []
    log = fortress.executor.log.read_text()
    assert "permission denied" not in log


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
            "SELECT * FROM ledger.inbox",
            "SELECT * FROM ledger.execution",
            "SELECT ledger.next_command_id()",
            "SELECT ledger.prune_audit_log(0, 1)",
        ):
            with named(statement), pytest.raises(asyncpg.InsufficientPrivilegeError):
                await shop.execute(statement)
    finally:
        if shop is not None:
            await shop.close()
        await owner.execute("DROP ROLE shop")
        await owner.close()


CHANGES_OF_THE_SCHEMA = (
    "CREATE TABLE ledger.mine (id int)",
    "CREATE FUNCTION turnstile.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "TRUNCATE ledger.execution CASCADE",
    "ALTER TABLE ledger.execution ADD COLUMN mine int",
    "DROP FUNCTION turnstile.submission",
    "UPDATE alembic_version SET version_num = '0'",
    "CREATE ROLE mine",
    f"ALTER DATABASE {DATABASE} SET search_path = mine",
    "ALTER ROLE keeper PASSWORD 'mine'",
    "COPY (SELECT 1) TO PROGRAM 'true'",
)


async def test_an_executor_role_cannot_change_the_schema(fortress: Fortress) -> None:
    async with session_of(fortress, "executor") as session:
        for statement in CHANGES_OF_THE_SCHEMA:
            with named(statement), pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement)
