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
    ROOT,
    Environment,
    write_application,
)
from tests.support.http_server import answering
from turnstile.localservers.ports import free_port

_READY_SECONDS = 60.0
_TYPED = """
from turnstile import AsyncClient, Client, Context, PermanentError, action

@action("typed.one", max_concurrent=3)
async def one(context: Context, number: int) -> int:
    raise PermanentError("no")

client: AsyncClient = AsyncClient(amqp_url="amqp://127.0.0.1/", http_url="http://127.0.0.1:8000")
sync_client: Client = Client(amqp_url="amqp://127.0.0.1/")
"""
_WRONG = """
from turnstile import AsyncClient, action, nothing

@action(7, max_concurent=3)
async def one() -> None: ...

AsyncClient(amqp_url=7)
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
    assert names == {"turnstile", "turnstile-0.1.0.dist-info", "dependencies.pth"}
    assert {path.name for path in environment.bin.iterdir()} >= {"executor", "turnstile", "worker"}
    assert not (environment.bin / "stress").exists()
    where = "import turnstile, common; print(turnstile.__file__, common.OWNER)"
    shown = environment.run(str(environment.bin / "python"), "-c", where, folder=application).split()
    assert shown == [str(environment.site_packages / "turnstile" / "__init__.py"), "user"]


def test_an_editable_install_follows_the_repository(environment: Environment, application: Path) -> None:
    """That of this interpreter."""
    where = "import turnstile, common; print(turnstile.__file__, common.OWNER)"
    shown = environment.run(sys.executable, "-c", where, folder=application).split()
    assert shown == [str(ROOT / "src" / "turnstile" / "__init__.py"), "user"]


def test_mypy_sees_the_types_in_a_users_project(environment: Environment, application: Path) -> None:
    (application / "typed.py").write_text(_TYPED)
    (application / "wrong.py").write_text(_WRONG)
    options = ["--strict", "--python-executable", str(environment.bin / "python"), "--no-error-summary"]
    mypy = [sys.executable, "-m", "mypy", *options]
    errors = environment.run(*mypy, "typed.py", "wrong.py", folder=application, expected=1)
    assert "typed.py" not in errors
    assert 'Module "turnstile" has no attribute "nothing"' in errors
    assert 'Argument 1 to "action" has incompatible type "int"' in errors
    assert 'Argument "amqp_url" to "AsyncClient" has incompatible type "int"' in errors
