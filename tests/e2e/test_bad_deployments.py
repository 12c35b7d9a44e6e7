"""A bad deployment is found in a minute: a line of the log, /readyz or a command names its cause and remedy.

The servers refuse wrong passwords, and the disk of the broker can be declared full.
`test_unsuited_schema.py` has the deployments without the schema of this version.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.e2e.commands import printed
from tests.support.environment import ACTIONS, Environment, running_environment, until_logged
from tests.support.processes import running
from tests.support.traffic import until
from turnstile.localservers import PostgresServer, RabbitServer
from turnstile.localservers.ports import LOOPBACK
from turnstile.migrations.run import migrate

pytestmark = pytest.mark.asyncio(loop_scope="module")
_FULL: Final = str(10**18)
"""A limit of free bytes that no disk has."""
_PASSWORD: Final = "the-right-password"
_WRONG: Final = "another-password"
DATABASE_LOGIN: Final = (
    'password authentication failed for user "service": correct TURNSTILE_DATABASE_URL, or set the password '
    "with 'executor setup-permissions'"
)
BROKER_LOGIN: Final = (
    "the broker refuses the user 'guest' or its password: correct TURNSTILE_AMQP_URL, or create the "
    "accounts with 'executor setup-permissions'"
)
ALARM: Final = (
    "the broker blocks publishing because of a memory or disk alarm: free memory or disk on its server; "
    "'rabbitmq-diagnostics alarms' names the alarm"
)


@pytest.fixture(scope="module")
def urls(own_postgresql: PostgresServer, controlled_amqp_url: str) -> tuple[str, str]:
    """A migrated database and a vhost; the user `service` of the database server needs a password."""
    database_url = own_postgresql.create_database("deployed")
    asyncio.run(migrate(database_url))
    rules = own_postgresql.folder / "data" / "pg_hba.conf"
    rules.write_text(f"host all postgres {LOOPBACK}/32 trust\nhost all service {LOOPBACK}/32 scram-sha-256\n")
    own_postgresql.execute(f"CREATE ROLE service LOGIN SUPERUSER PASSWORD '{_PASSWORD}'")
    own_postgresql.execute("SELECT pg_reload_conf()")
    return _as(f"service:{_PASSWORD}", database_url), controlled_amqp_url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env(urls: tuple[str, str]) -> AsyncIterator[Environment]:
    """An executor without workers."""
    async with running_environment(*urls, workers=0) as env:
        yield env


def _as(login: str, url: str) -> str:
    scheme, rest = url.split("://")
    return f"{scheme}://{login}@{rest.rpartition('@')[2]}"


def _lines(file: Path, event: str) -> list[str]:
    return [line for line in file.read_text().splitlines() if f" {event} " in line]


async def _printed(env: Environment, *arguments: str) -> str:
    """Return what a command prints, as one line."""
    text = await printed(*arguments, TURNSTILE_API_URL=env.system.http_url, COLUMNS="300")
    return " ".join(text.split())


async def test_a_wrong_password_is_named_with_its_setting_by_readyz_and_in_one_line_of_the_log(
    urls: tuple[str, str],
) -> None:
    database_url, amqp_url = urls
    wrong = {"TURNSTILE_DATABASE_URL": _as(f"service:{_WRONG}", database_url)}
    wrong_broker = {"TURNSTILE_AMQP_URL": _as(f"guest:{_WRONG}", amqp_url)}
    async with running(database_url, amqp_url, executors=0, workers=0) as system:
        executor = await system.start_executor(wait=False, **wrong, **wrong_broker)
        worker = await system.launch_worker(ACTIONS, **wrong_broker)
        await executor.until_unready(database=DATABASE_LOGIN, broker=BROKER_LOGIN)
        await worker.until_unready(broker=BROKER_LOGIN)
        (line,) = _lines(executor.log, "database_unreachable")
        assert DATABASE_LOGIN in line
        for service in (executor, worker):
            assert BROKER_LOGIN in service.log.read_text()
            assert _WRONG not in service.log.read_text()


async def test_a_worker_of_a_misspelt_pool_is_named_by_what_waits_and_by_its_own_log(
    env: Environment,
) -> None:
    misspelt = await env.start_worker(TURNSTILE_WORKER_POOLS="defualt")
    (line,) = _lines(misspelt.log, "serving")
    assert "pools=defualt" in line
    (line,) = _lines(misspelt.log, "pool_without_actions")
    assert "pool=defualt pools_of_its_actions=default" in line
    waiting = await env.submit("noop")
    assert (await env.get(waiting))["waiting_on"] == {
        "reason": "no_worker",
        "pool": "default",
        "other_pools": ["defualt"],
    }
    shown = await _printed(env, "get", str(waiting))
    assert "no live worker in pool default serves the action, but a worker in pool defualt has it" in shown
    assert "TURNSTILE_WORKER_POOLS=defualt,default worker serve" in shown
    assert "defualt" in await _printed(env, "workers", "list")
    assert await misspelt.stop() == 0
    serving = await env.start_worker(TURNSTILE_WORKER_POOLS="default")
    assert await env.ended(waiting) == ["completed"]
    assert await serving.stop() == 0


async def test_a_full_disk_of_the_broker_is_named_by_readyz_top_and_what_waits(
    env: Environment, controlled_broker: RabbitServer
) -> None:
    worker = await env.start_worker()
    assert await env.ended(await env.submit("noop")) == ["completed"]
    await asyncio.to_thread(controlled_broker.ctl, "set_disk_free_limit", _FULL)
    try:
        # The broker announces the alarm to a connection that publishes.
        waiting = await env.submit("noop")

        async def named() -> bool:
            degraded = (await env.executor.readiness()).get("degraded", {})
            return bool(degraded.get("broker") == ALARM)

        await until(named, "/readyz names the alarm")
        assert f"Does not work: broker: {ALARM}" in await _printed(env, "top", "--once")
        assert (await env.get(waiting))["waiting_on"] == {
            "reason": "unavailable",
            "part": "broker",
            "message": ALARM,
        }
        await worker.until_unready(broker=None, executor=ALARM)
        await until_logged(worker, f"lease_not_renewed reason={ALARM}")
    finally:
        await asyncio.to_thread(controlled_broker.ctl, "set_disk_free_limit", "50MB")
    assert await env.ended(waiting) == ["completed"]
    assert await worker.stop() == 0
