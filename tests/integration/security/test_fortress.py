"""A secured installation works: an account for each service, TLS on every link."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import trustme

from tests.integration.cli.conftest import CommandLines
from tests.integration.security.fortress import TOKENS, VHOST, Fortress
from tests.support.broker_administration import close_connections
from tests.support.traffic import in_background, until
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.database import Database
from turnstile.common.settings import DatabaseSettings

pytestmark = pytest.mark.asyncio(loop_scope="package")

_ENDED = ("completed", "failed", "cancelled", "timeout", "abandoned", "expired")


async def submit(http: httpx.AsyncClient, ref: str, **parameters: Any) -> int:
    answer = await http.post("/executions", json={"action_ref": ref, "parameters": parameters})
    assert answer.status_code == 202, answer.text
    return int(answer.json()["id"])


async def read(http: httpx.AsyncClient, execution_id: int) -> dict[str, Any]:
    return dict((await http.get(f"/executions/{execution_id}")).json())


async def until_status(http: httpx.AsyncClient, execution_id: int, *statuses: str) -> dict[str, Any]:
    async def has_status() -> bool:
        return (await read(http, execution_id))["status"] in statuses

    await until(has_status, f"{execution_id} is one of {statuses}")
    return await read(http, execution_id)


async def is_ready(http: httpx.AsyncClient, fortress: Fortress) -> bool:
    requests = [http.get(f"{service.url}/readyz") for service in (fortress.executor, fortress.worker)]
    return all(answer.status_code == 200 for answer in await asyncio.gather(*requests))


async def test_executions_run_under_the_accounts_of_the_services(fortress: Fortress) -> None:
    async with fortress.http(TOKENS["ci"][1]) as http:
        ids = [await submit(http, "guarded.echo", number=number) for number in range(6)]
        retried, child = await submit(http, "guarded.flaky"), await submit(http, "guarded.child", number=7)
        for number, execution_id in enumerate(ids):
            assert (await until_status(http, execution_id, *_ENDED))["result"] == number
        assert (await until_status(http, child, *_ENDED))["result"] == 7
        assert (await until_status(http, retried, *_ENDED))["result"] == 2
        # The worker's account has registered its schemas.
        action = (await http.get("/actions/guarded.echo")).json()
    assert action["parameters_checked_by"] == "code"
    assert action["code_schemas"][0]["parameters_schema"]["required"] == ["number"]


async def test_no_service_declares_what_exists(fortress: Fortress) -> None:
    """The broker logs every refusal: a connection made anew leads to none."""
    (log,) = fortress.servers.rabbitmq.folder.glob("rabbitmq-node.log")
    before = log.read_text(errors="replace").count("ACCESS_REFUSED")

    async def closed() -> bool:
        # Each of the two publishes on one and consumes from another; the broker's list of them lags behind.
        return await asyncio.to_thread(close_connections, fortress.servers.rabbitmq, VHOST) >= 4

    await until(closed, "the broker knows the connections, and has closed them")
    async with fortress.http(TOKENS["ci"][1]) as http:
        again = await submit(http, "guarded.echo", number=5)
        assert (await until_status(http, again, *_ENDED))["result"] == 5
        await until(lambda: is_ready(http, fortress), "both are ready again")
    assert log.read_text(errors="replace").count("ACCESS_REFUSED") == before


async def test_a_client_submits_and_waits_under_its_own_account(fortress: Fortress) -> None:
    async with fortress.client() as client:
        submitted = await client.submit("guarded.echo", {"number": 41})
        assert (await client.wait(submitted.execution_id)).result == 41


async def test_credentials_are_one_private_file_per_service(fortress: Fortress) -> None:
    folder = fortress.folder / "credentials"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["client.env", "executor.env", "worker.env"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    names = [
        {url.partition("://")[2].partition(":")[0] for url in e.values()}
        for e in fortress.environments.values()
    ]
    assert names == [{"turnstile-executor"}, {"turnstile-worker"}, {"turnstile-client"}]
    databases = [s for s, e in fortress.environments.items() if "TURNSTILE_DATABASE_URL" in e]
    assert databases == ["executor"]


async def test_no_secret_is_an_argument_or_in_a_log(fortress: Fortress) -> None:
    secrets = fortress.secrets()
    assert len(secrets) >= 6
    logs = [
        fortress.executor.log,
        fortress.worker.log,
        *fortress.servers.postgresql.folder.glob("*.log"),
        *fortress.servers.rabbitmq.folder.glob("*.log"),
    ]
    texts = {str(log): log.read_text(errors="replace") for log in logs} | {"printed": fortress.printed}
    pids = [pid for service in (fortress.executor, fortress.worker) for pid in service.family()]
    assert len(pids) > 2, "the executor, the worker, and children of the worker"
    texts |= {f"arguments of {pid}": arguments_of(pid) for pid in pids}
    assert "executor" in texts[str(fortress.executor.log)]
    for where, text in texts.items():
        assert [secret for secret in secrets if secret in text] == [], where


async def test_the_database_refuses_connections_without_tls(fortress: Fortress) -> None:
    url = fortress.environments["executor"]["TURNSTILE_DATABASE_URL"].partition("?")[0]
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await asyncpg.connect(f"{url}?sslmode=disable")


@pytest.fixture
def other_authority(tmp_path: Path) -> str:
    """The file of an authority that signed nothing here."""
    file = tmp_path / "other_authority.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    return str(file)


async def test_servers_of_another_authority_are_refused_with_the_remedy(
    fortress: Fortress, other_authority: str
) -> None:
    urls = {
        name: url.replace(str(fortress.ca_file), other_authority)
        for name, url in fortress.environments["executor"].items()
    }
    database = Database(urls["TURNSTILE_DATABASE_URL"], application_name="test")
    async with in_background(database.open()):
        await until(lambda: "not trusted" in str(database.last_error))
    assert str(database.last_error).endswith("sslrootcert in TURNSTILE_DATABASE_URL")

    async def serve(_: Link) -> None:
        raise AssertionError("the connection was accepted")

    connection = BrokerConnection(urls["TURNSTILE_AMQP_URL"], name="test", timeouts=BrokerTimeouts())
    async with in_background(connection.run(serve)):
        await until(lambda: "not trusted" in str(connection.last_error))
    assert str(connection.last_error).endswith("cafile in TURNSTILE_AMQP_URL")


def arguments_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_the_command_line_trusts_only_the_configured_authority(
    fortress: Fortress, other_authority: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKENS["ci"][1])
    commands = CommandLines(
        environment={"TURNSTILE_API_URL": fortress.api_url, "TURNSTILE_API_TOKEN_FILE": str(token)}
    )

    def listed(**settings: str) -> Any:
        return commands.executor("list", "--json", **settings)

    right = await asyncio.to_thread(listed, TURNSTILE_API_CA_FILE=str(fortress.ca_file))
    assert right.exit_code == 0, right.err
    for settings in ({"TURNSTILE_API_CA_FILE": other_authority}, {}):
        wrong = await asyncio.to_thread(listed, **settings)
        assert wrong.exit_code == 3
        assert "not trusted" in wrong.err
        assert "TURNSTILE_API_CA_FILE" in wrong.err


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("database_url", "postgresql://h/d?sslrootcert=/no/such"),
        ("database_url", "postgresql://h/d?sslmode=always"),
        ("database_url", "postgresql://h/d?sslkey=/etc/hostname"),
        ("amqp_url", "amqps://h/v?cafile=/no/such"),
        ("amqp_url", "amqps://h/v?cafile=/etc/hostname"),
        ("amqp_url", "amqps://h/v?certfile=/etc/hostname&keyfile=/etc/hostname"),
        ("amqp_url", "amqps://h/v?no_verify_ssl=1"),
        ("amqp_url", "amqp://h/v?cafile=/etc/hostname"),
    ],
)
async def test_an_invalid_tls_option_of_a_url_is_named(setting: str, url: str) -> None:
    option = url.partition("?")[2].partition("=")[0]
    with pytest.raises(ValueError, match=option):
        DatabaseSettings.model_validate({setting: url})
