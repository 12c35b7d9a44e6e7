"""The pytest plugin in a project of its own: an installation that is empty before each test.

It needs a process: the plugin is loaded by a pytest of that project.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import AMQP_URL, DATABASE_URL, MANAGEMENT_URL
from turnstile.localservers import BrokerServer, DatabaseServer
from turnstile.testing import installation
from turnstile.testing.private_installation import NoActionModules

# Each starts an executor and a worker.
pytestmark = pytest.mark.timeout(300)

_CONFIGURATION = """
[pytest]
turnstile_actions = shop.actions mail.actions
pythonpath = src
asyncio_default_fixture_loop_scope = function
filterwarnings = error
faulthandler_timeout = 60
faulthandler_exit_on_timeout = true
"""
"""A test that hangs ends with the stack of each thread."""
_ACTIONS = """
import asyncio
import time
from turnstile import Context, TemporaryError, action

@action("shop.greet", max_concurrent=1)
async def greet(context: Context, name: str) -> str:
    print("greeting", name)
    return f"hello {name}"

@action("shop.flaky", retry={"max_attempts": 2, "delay": "1h", "jitter": 0})
async def flaky(context: Context) -> int:
    if context.attempt == 1:
        raise TemporaryError("not yet")
    return context.attempt

@action("shop.nap", max_concurrent=1, timeout="30m")
async def nap() -> None:
    await asyncio.sleep(3600)

@action("shop.slow")
def slow() -> None:
    time.sleep(3600)
"""
_MAIL = """
from turnstile import action

@action("mail.send")
async def send(to: str) -> str:
    return to
"""
_TESTS = """
import asyncio
import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from shop.actions import flaky, greet

ELSEWHERE = "amqp://127.0.0.1:9/elsewhere"


@pytest.fixture(autouse=True, scope="module")
def configured_for_another_installation():
    os.environ["TURNSTILE_AMQP_URL"] = ELSEWHERE
    os.environ["TURNSTILE_API_TOKEN"] = "of-another-installation"


def until_delayed(turnstile, execution_id):
    deadline = time.monotonic() + 30
    while (execution := turnstile.client.get(execution_id)).status != "delayed":
        assert time.monotonic() < deadline, f"{execution}\\n{turnstile.log()}"
        time.sleep(0.02)


def test_an_action_runs(turnstile):
    assert turnstile.client.run("shop.greet", {"name": "ada"}, wait_timeout=30) == "hello ada"
    turnstile.client.submit("shop.slow")
    turnstile.client.submit("shop.greet", {"name": "later"}, run_at=datetime(2100, 1, 1, tzinfo=UTC))


def test_what_the_application_submits_goes_to_the_installation(turnstile):
    handle = greet.submit_sync(name="ada")
    assert handle.result(timeout=30) == "hello ada"
    assert turnstile.client.get(handle.id).status == "completed"
    assert os.environ["TURNSTILE_AMQP_URL"] == turnstile.amqp_url
    assert "TURNSTILE_API_TOKEN" not in os.environ


def test_the_worker_imports_from_the_folders_that_the_tests_import_from(turnstile):
    assert turnstile.client.run("mail.send", {"to": "ada"}, wait_timeout=30) == "ada"


def test_after_a_test_the_environment_is_the_former_one():
    assert os.environ["TURNSTILE_AMQP_URL"] == ELSEWHERE
    assert os.environ["TURNSTILE_API_TOKEN"] == "of-another-installation"


def test_a_test_with_an_event_loop_submits_waits_and_moves_time(turnstile):
    async def play():
        assert await (await greet.submit(name="ada")).result(timeout=30) == "hello ada"
        handle = await flaky.submit()
        async for event in handle.events():
            if event.status == "delayed":
                turnstile.advance("1h")
        assert (await handle.wait(timeout=30)).attempt == 2
        async with turnstile.async_client() as client:
            assert len((await client.list()).items) == 2
        turnstile.reset()
        assert turnstile.client.list().items == ()

    asyncio.run(play())


def test_a_fake_client_records_what_is_submitted(turnstile_fake):
    turnstile_fake.completes("shop.greet", "hello fake")
    assert greet.submit_sync(name="eve").result() == "hello fake"
    assert [one.parameters for one in turnstile_fake.submitted] == [{"name": "eve"}]


def test_nothing_is_left_of_earlier_tests(turnstile):
    assert turnstile.client.list().items == ()


def test_a_delay_of_two_days_passes(turnstile):
    due = datetime.now(UTC) + timedelta(days=2)
    execution_id = turnstile.client.submit("shop.greet", {"name": "x"}, run_at=due).execution_id
    turnstile.advance("47h")
    until_delayed(turnstile, execution_id)
    turnstile.advance("61m")
    assert turnstile.client.wait(execution_id, timeout=30).result == "hello x"
    assert set(turnstile.environment) >= {"TURNSTILE_AMQP_URL", "TURNSTILE_API_URL"}


def test_a_time_to_live_passes_while_an_execution_waits(turnstile):
    running = turnstile.client.submit("shop.nap").execution_id
    waiting = turnstile.client.submit("shop.nap", ttl="1h").execution_id
    turnstile.advance("61m")
    assert turnstile.client.wait(waiting, timeout=30).status == "expired"
    assert turnstile.client.get(running).status in ("scheduled", "running")
"""


_ONE_TEST = """
def test_an_action_runs(turnstile):
    assert turnstile.client.run("shop.greet", {"name": "ada"}, wait_timeout=30) == "hello ada"
"""


@pytest.fixture
def server_urls(postgresql: DatabaseServer, rabbitmq: BrokerServer) -> dict[str, str]:
    assert rabbitmq.management_url is not None
    return {
        DATABASE_URL: postgresql.url("postgres"),
        AMQP_URL: rabbitmq.url(),
        MANAGEMENT_URL: rabbitmq.management_url,
    }


def test_a_project_tests_its_actions_on_a_private_installation(
    tmp_path: Path, server_urls: dict[str, str]
) -> None:
    for folder, text in ((tmp_path / "shop", _ACTIONS), (tmp_path / "src" / "mail", _MAIL)):
        folder.mkdir(parents=True)
        (folder / "actions.py").write_text(text)
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "pytest.ini").write_text(_CONFIGURATION)
    (tmp_path / "test_shop.py").write_text(_TESTS)
    done = run_pytest(tmp_path, server_urls)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout


def test_an_unknown_module_of_the_worker_is_named_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(_CONFIGURATION.replace("shop.actions mail.actions", "shop.actions"))
    (tmp_path / "test_shop.py").write_text(_ONE_TEST)
    # Nothing listens there: the modules are checked before the servers are used.
    unused = {DATABASE_URL: "postgresql://127.0.0.1:9/x", AMQP_URL: "amqp://127.0.0.1:9/"}
    done = run_pytest(tmp_path, {**unused, MANAGEMENT_URL: "http://127.0.0.1:9"})
    assert done.returncode == 1, done.stdout + done.stderr
    remedy = f"shop.actions: there is no module 'shop' in {tmp_path}, nor on Python's path"
    assert remedy in done.stdout
    assert "plugin.py" not in done.stdout


def test_an_installation_without_modules_is_refused_before_a_server_starts() -> None:
    with pytest.raises(NoActionModules, match=r'name at least one .* installation\("reports.actions"\)'):
        installation().__enter__()


def run_pytest(folder: Path, server_urls: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, **server_urls},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
