"""A policy of the broker that would drop messages is found before, and shows afterwards."""

from pathlib import Path
from urllib.parse import quote, urlsplit

from tests.integration.cli.conftest import CommandLines, alone, no_settings
from tests.integration.executor.dead_letter_queue import dead_letter_queue, draining
from tests.support.broker_administration import PolicyKind, delete_policy, set_policy
from tests.support.brokers import message
from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.localservers import BrokerServer

__all__ = ["alone", "no_settings"]


def test_setup_permissions_fails_while_a_policy_may_drop_messages(
    alone: CommandLines, rabbitmq: BrokerServer, amqp_url: str, tmp_path: Path
) -> None:
    parts = urlsplit(amqp_url)
    account = f"{quote(parts.username or '')}:{quote(parts.password or '')}"
    management_url = rabbitmq.management_url.replace("http://", f"http://{account}@")

    def set_up() -> tuple[int, str]:
        ended = alone.executor(
            "setup-permissions", "--no-database", "--dry-run", "--credentials", str(tmp_path),
            TURNSTILE_AMQP_URL=amqp_url, TURNSTILE_MANAGEMENT_URL=management_url,
        )  # fmt: skip
        return ended.exit_code, ended.err

    assert set_up() == (0, "")
    vhost = parts.path[1:]
    kinds: list[tuple[PolicyKind, str]] = [
        ("policies", "clear_policy"),
        ("operator-policies", "clear_operator_policy"),
    ]
    for kind, command in kinds:
        set_policy(rabbitmq, vhost, "short", "^executor.requests$", {"message-ttl": 10}, kind=kind)
        code, said = set_up()
        assert (code, "policy 'short' lets the broker drop messages of executor.requests" in said) == (
            1,
            True,
        )
        assert f"rabbitmqctl {command} -p {vhost} short" in said
        delete_policy(rabbitmq, vhost, "short", kind=kind)
        assert set_up() == (0, "")


async def test_what_a_policy_drops_is_a_dead_letter_with_its_reason(
    rabbitmq: BrokerServer, database_url: str, amqp_url: str
) -> None:
    async with dead_letter_queue(database_url, amqp_url) as queue:
        set_policy(rabbitmq, urlsplit(amqp_url).path[1:], "short", "^executor.requests$", {"max-length": 1})

        async def drops() -> bool:
            # The broker applies a policy a little later.
            await queue.publisher.publish(
                [message(EXECUTION_REQUESTED, exchange=EXECUTIONS) for _ in range(3)]
            )
            return await queue.ready() > 0

        await until(drops, "the policy is in effect")

        async def are_stored() -> bool:
            return await queue.ready() == 0

        async with draining(queue.database, amqp_url):
            await until(are_stored, "the dead letters are stored")
        assert {each.code for each in await queue.all()} == {"maxlen"}
