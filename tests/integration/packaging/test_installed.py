"""Installed, Turnstile is one package, and an application's own modules of any name are not shadowed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.packaging.installed import (
    FOLDERS,
    MODULES,
    Environment,
    write_application,
)
from tests.support.http_server import answering
from turnstile.localservers.ports import free_port

_READY_SECONDS = 60.0
_GOOD = """
from typing import Any
from uuid import UUID

from turnstile import AsyncClient, AsyncHandle, Client, Context, Rejected, action


@action("render", max_concurrent=3)
async def render(context: Context, customer_id: int, *, deep: bool = False) -> dict[str, Any]:
    return {}


@action("resize")
def resize(width: int = 800) -> str:
    return ""


async def main(row: Any, context: Context) -> None:
    handle: AsyncHandle[dict[str, Any]] = await render.submit(7, deep=True)
    found: dict[str, Any] = await handle.result(timeout="5m")
    await render.with_options(priority=1, delay="5m").submit(customer_id=row["id"])
    text: str = resize.submit_sync(width=3).result()
    direct: dict[str, Any] = await render(context=context, customer_id=7)
    length: int = len(resize())
    request_id: UUID = resize.submit_in(row, width=3)
    request_id = await render.submit_in_async(row, 7, deep=True)
    urgent = render.with_options(priority=1)
    many = await render.submit_many([render.request(7), urgent.request(8, deep=True)])
    first: AsyncHandle[dict[str, Any]] | Rejected = many[0]
    async with AsyncClient.from_env() as client:
        own: AsyncHandle[dict[str, Any]] = await client.submit(render.request(customer_id=7))
        named: AsyncHandle[Any] = await client.submit("render", {"customer_id": 7})
        once: AsyncHandle[Any] | Rejected = (await client.submit_many([render.request(7)]))[0]
        await client.change_action("render", max_concurrent=5, timeout="5m", retry={"max_attempts": 2})
        await client.change_resource("licence", capacity=None, rate={"starts": 5, "per": "1s"})
    with Client.from_env() as blocking:
        text = blocking.submit(resize.request(3)).result()
        ended: str = blocking.submit("resize", {"width": 3}).status()
        blocking.change_action("resize", uses=["licence", {"resource": "gpu", "units": 2}], paused=True)
"""
_BAD = """
from turnstile import Client, Context, action


@action("render")
async def render(context: Context, customer_id: int) -> int:
    return 1


@action("resize")
def resize(width: int) -> str:
    return ""


async def main() -> None:
    await render.submit(customer=7)
    await render.submit(customer_id="x")
    resize.submit_sync()
    resize.submit_sync(width="x")
    number: int = resize.submit_sync(1).result()
    render.with_options(prioritty=1)
    await render(7)
    resize.submit_in(object(), width="x")
    await render.submit_in_async(object(), customer=7)
    await render.submit_many([render.request(customer=7)])
    resize.submit_many_sync([render.request(7)])
    resize.request("x")
    Client.from_env().change_action("resize", max_concurent=5)
    Client.from_env().change_action("resize", max_concurrent="five")
    Client.from_env().change_resource("licence", capacity="5")
    Client(amqp_url=7)
    action(7)
    from turnstile import nothing
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture
def application(tmp_path: Path) -> Path:
    return write_application(tmp_path / "application")


def is_ready(port: int) -> bool:
    try:
        url = f"http://127.0.0.1:{port}/readyz"
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def running(
    environment: Environment, folder: Path, port: int, *command: str, **settings: str
) -> Iterator[None]:
    """Run a service of the installed package until the block ends; it must become ready and stop cleanly."""
    log = folder / f"{command[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [environment.bin / command[0], *command[1:]],
            cwd=folder,
            env=environment.variables(settings),
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while not is_ready(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        code = process.wait(30)
    assert code == 0, log.read_text()


@pytest.mark.timeout(300)
def test_worker_clients_and_cli_work_beside_modules_of_the_same_names(
    environment: Environment, application: Path, empty_database_url: str, amqp_url: str
) -> None:
    port, worker_port = free_port(), free_port()
    settings = {
        "TURNSTILE_DATABASE_URL": empty_database_url,
        "TURNSTILE_AMQP_URL": amqp_url,
        "TURNSTILE_HTTP_PORT": str(port),
        "TURNSTILE_API_URL": f"http://127.0.0.1:{port}",
    }
    cli = str(environment.bin / "turnstile")
    with ExitStack() as stack:
        settings["HTTP_ACTION_URL"] = stack.enter_context(answering(lambda *_: (200, b'"posted"')))
        environment.run(cli, "executor", "migrate", folder=application, settings=settings)
        stack.enter_context(running(environment, application, port, "executor", "serve", **settings))
        serve = ("worker", "serve", "--actions", "actions")
        worker_settings = settings | {"TURNSTILE_WORKER_HTTP_PORT": str(worker_port)}
        stack.enter_context(running(environment, application, worker_port, *serve, **worker_settings))
        python = str(environment.bin / "python")
        results = json.loads(environment.run(python, "submit.py", folder=application, settings=settings))
        environment.run(cli, "healthcheck", folder=application, settings=settings)
        submitted = ("executor", "submit", "own.plain", "number=7", "--wait", "--json")
        by_cli = json.loads(environment.run(cli, *submitted, folder=application, settings=settings))
    own = dict.fromkeys((*FOLDERS, *MODULES), "user")
    assert results == {"own.async": own, "own.plain": own, "own.command": own, "own.http": "posted"}
    assert by_cli["result"] == own


def test_one_top_level_package_is_installed(environment: Environment, application: Path) -> None:
    names = {path.name for path in environment.site_packages.iterdir()}
    assert names == {"turnstile", "turnstile_scheduler-0.2.0.dist-info", "dependencies.pth"}
    assert {path.name for path in environment.bin.iterdir()} >= {"executor", "turnstile", "worker"}
    assert not (environment.bin / "stress").exists()
    where = "import turnstile, common; print(turnstile.__file__, common.OWNER)"
    shown = environment.run(str(environment.bin / "python"), "-c", where, folder=application).split()
    assert shown == [str(environment.site_packages / "turnstile" / "__init__.py"), "user"]


@pytest.mark.timeout(300)
def test_mypy_checks_names_types_and_results_in_a_users_project(
    environment: Environment, application: Path
) -> None:
    (application / "good.py").write_text(_GOOD)
    (application / "bad.py").write_text(_BAD)
    options = ["--strict", "--python-executable", str(environment.bin / "python"), "--no-error-summary"]
    mypy = [sys.executable, "-m", "mypy", *options, "--hide-error-context"]
    output = environment.run(*mypy, "good.py", "bad.py", folder=application, expected=1)
    errors = [line for line in output.splitlines() if ": error:" in line]
    assert {line.partition(":")[0] for line in errors} == {"bad.py"}, output
    wrong = [number for number, line in enumerate(_BAD.splitlines(), 1) if number > 15]
    assert sorted({int(line.split(":")[1]) for line in errors}) == wrong, output
    assert any('"customer"' in line and 'did you mean "customer_id"' in line for line in errors)
    assert any('Module "turnstile" has no attribute "nothing"' in line for line in errors)
