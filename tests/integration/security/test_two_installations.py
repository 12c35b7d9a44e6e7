"""Two installations on one PostgreSQL and one RabbitMQ: setting up the second leaves the first as it was.

The first is `fortress`, whose services run meanwhile. The second is set up by the command alone.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from tests.integration.cli.conftest import CommandLines, Ended
from tests.integration.security.fortress import DATABASE, VHOST, Fortress, read_environment, run
from tests.integration.security.test_fortress import submit, until_status
from tests.support.processes import CERTIFICATES
from tests.support.traffic import in_background, until
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.executor.cli import setup_permissions
from turnstile.executor.permissions.broker import ManagementApi
from turnstile.executor.permissions.credentials import Login
from turnstile.executor.permissions.plan import Source

pytestmark = pytest.mark.asyncio(loop_scope="package")

_SERVICES = ("executor", "worker", "client")
_PARTS = {"TURNSTILE_DATABASE_URL": f"/{DATABASE}?", "TURNSTILE_AMQP_URL": f"/{VHOST}?"}


_CRASHED = 77


def _crash(*_: object) -> None:
    raise SystemExit(_CRASHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """Another database and vhost on the servers of the fortress, and the folder of its credentials."""

    owner: Mapping[str, str]
    folder: Path

    def set_up(self, *options: str, **settings: str) -> Ended:
        commands = CommandLines(environment={**self.owner, **settings})
        return commands.executor("setup-permissions", "--credentials", str(self.folder), "--yes", *options)

    def environments(self) -> dict[str, dict[str, str]]:
        return {service: read_environment(self.folder / f"{service}.env") for service in _SERVICES}


@pytest.fixture(scope="module")
def owner_of_second(fortress: Fortress) -> Mapping[str, str]:
    fortress.servers.postgresql.execute("CREATE DATABASE second OWNER keeper")
    owner = dict(fortress.owner)
    for name, part in _PARTS.items():
        owner[name] = owner[name].replace(part, "/second?")
    run("turnstile.executor.cli", "migrate", environment=owner)
    return owner


@pytest.fixture
def second(fortress: Fortress, owner_of_second: Mapping[str, str], tmp_path: Path) -> Iterator[Second]:
    """The second installation without accounts."""
    yield Second(owner=owner_of_second, folder=tmp_path / "second")
    management = fortress.owner["TURNSTILE_MANAGEMENT_URL"]
    for service in _SERVICES:
        httpx.delete(f"{management}/api/users/turnstile-second-{service}", verify=CERTIFICATES)
        name = f'"turnstile-second-{service}"'
        fortress.servers.postgresql.execute(
            f"DO $$ BEGIN IF to_regrole('{name}') IS NOT NULL THEN"
            f" REVOKE ALL ON DATABASE second FROM {name}; DROP ROLE {name}; END IF; END $$"
        )


async def can_connect(environment: Mapping[str, str]) -> bool:
    """Whether new connections to both servers are accepted, or both are refused for the password."""
    accepted = []
    if "TURNSTILE_DATABASE_URL" in environment:
        try:
            await (await asyncpg.connect(environment["TURNSTILE_DATABASE_URL"])).close()
            accepted.append(True)
        except asyncpg.InvalidPasswordError:
            accepted.append(False)
    # That of the library leaves its transport open where the password is refused.
    connection = BrokerConnection(environment["TURNSTILE_AMQP_URL"], name="test", timeouts=BrokerTimeouts())
    connected = asyncio.Event()

    async def serve(link: Link) -> None:
        connected.set()
        await asyncio.wait({link.gone})

    async with in_background(connection.run(serve)):
        await until(lambda: connected.is_set() or connection.last_error is not None)
    assert connected.is_set() or "refuses the user" in str(connection.last_error)
    accepted.append(connected.is_set())
    assert len(set(accepted)) == 1, "the servers have different passwords"
    return accepted[0]


async def all_connect(environments: Mapping[str, Mapping[str, str]]) -> bool:
    found = {await can_connect(environment) for environment in environments.values()}
    assert len(found) == 1
    return found.pop()


async def assert_first_works(fortress: Fortress) -> None:
    assert await all_connect(fortress.environments)
    async with fortress.http() as http:
        done = await until_status(http, await submit(http, "guarded.echo", number=3), "completed", "failed")
        assert done["result"] == 3


async def test_the_first_goes_on_working_after_the_second_is_set_up(
    fortress: Fortress, second: Second
) -> None:
    ended = await asyncio.to_thread(second.set_up)
    assert ended.exit_code == 0, ended.err
    await assert_first_works(fortress)
    environments = second.environments()
    assert await all_connect(environments)
    users = {urlsplit(url).username for e in environments.values() for url in e.values()}
    assert users == {f"turnstile-second-{service}" for service in _SERVICES}
    with ManagementApi(fortress.owner["TURNSTILE_MANAGEMENT_URL"]) as api:
        for prefix, vhost in (("turnstile", VHOST), ("turnstile-second", "second")):
            login = Login(service="worker", name=f"{prefix}-worker", password="", source=Source.STORED)
            assert api.read_accounts(vhost, [login])["worker"].users == {vhost}
    # A database that is closed to the public admits its own accounts only.
    fortress.servers.postgresql.execute(
        f"REVOKE CONNECT ON DATABASE {DATABASE} FROM PUBLIC, turnstile_executor"
    )
    url = second.environments()["executor"]["TURNSTILE_DATABASE_URL"]
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await asyncpg.connect(url.replace("/second?", _PARTS["TURNSTILE_DATABASE_URL"]))
    await assert_first_works(fortress)


async def test_rotate_changes_this_installation_only_and_an_old_copy_of_the_folder_brings_nothing_back(
    fortress: Fortress, second: Second
) -> None:
    assert (await asyncio.to_thread(second.set_up)).exit_code == 0
    before, old = second.environments(), {file: file.read_text() for file in second.folder.iterdir()}
    ended = await asyncio.to_thread(second.set_up, "--rotate")
    assert ended.exit_code == 0, ended.err
    assert "restart with the new credentials: all executors, all workers, all clients over AMQP" in ended.out
    assert not await all_connect(before)
    current = second.environments()
    assert await all_connect(current)
    await assert_first_works(fortress)
    listed = await asyncpg.connect(second.owner["TURNSTILE_DATABASE_URL"])
    try:
        rows = await listed.fetch(
            "SELECT verb, subject, channel FROM ledger.audit_log WHERE subject_kind = 'account'"
        )
    finally:
        await listed.close()
    recorded = {(row["verb"], row["subject"]) for row in rows if row["channel"] == "database"}
    services = {f"turnstile-second-{service}" for service in _SERVICES}
    assert recorded >= {(verb, name) for verb in ("created", "rotated") for name in services}
    for file, text in old.items():
        file.write_text(text)
    ended = await asyncio.to_thread(second.set_up)
    assert ended.exit_code == 1
    assert "its password is not the one in the credentials folder" in ended.out
    assert await all_connect(current)


@pytest.mark.parametrize(
    ("at", "options"),
    [
        ("change_roles", ()),
        ("change_accounts", ("--rotate",)),
        ("complete_files", ()),
    ],
)
async def test_a_run_after_a_crash_completes_it(
    second: Second, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], at: str
) -> None:
    if options:
        assert (await asyncio.to_thread(second.set_up)).exit_code == 0
    with monkeypatch.context() as crashes:
        owner = setup_permissions if hasattr(setup_permissions, at) else ManagementApi
        crashes.setattr(owner, at, _crash)
        assert (await asyncio.to_thread(second.set_up, *options)).exit_code == _CRASHED
    ended = await asyncio.to_thread(second.set_up)
    assert ended.exit_code == 0, ended.out + ended.err
    assert sorted(file.name for file in second.folder.iterdir()) == [
        "client.env",
        "executor.env",
        "worker.env",
    ]
    assert await all_connect(second.environments())
