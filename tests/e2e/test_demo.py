"""`executor demo` as a new user runs it: it passes, and nothing of it is left.

The command starts and stops servers and services of its own.
"""

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.commands import Command, left_in
from tests.e2e.commands import started as started_command
from tests.integration.localservers.watching import processes_of
from tests.support.traffic import until
from turnstile.common.cli import CommandFailed
from turnstile.localservers import LocalServers, MissingBinaries
from turnstile.stress.demo import demo

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "turnstile", "executor", "demo")

pytestmark = [pytest.mark.usefixtures("local_binaries"), pytest.mark.timeout(240)]


@asynccontextmanager
async def started(
    scratch_folder: Path, *arguments: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Command]:
    """Run the demo, with its temporary files in `scratch_folder`."""
    environment = {**os.environ, **(settings or {})}
    async with started_command(
        [*COMMAND, *arguments], cwd=ROOT, scratch_folder=scratch_folder, environment=environment
    ) as demo:
        yield demo


async def test_the_demo_passes_and_leaves_nothing(scratch_folder: Path) -> None:
    # Settings of the user are ignored.
    foreign = {"TURNSTILE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "TURNSTILE_HTTP_PORT": "1"}
    async with started(scratch_folder, settings=foreign) as demo:
        code = await demo.end()
    assert code == 0, demo.text
    for limit in (2, 3):
        # Executions, rate, limit, peak slots, peak running, out of order.
        assert re.search(rf"Limit {limit} +100 +\S+ +{limit} +{limit} +{limit} +0 ", demo.text), demo.text
    assert "PASS Every check, over 200 executions in 2 scenarios" in demo.text
    assert left_in(scratch_folder) == []


@pytest.mark.whole
async def test_ctrl_c_while_the_servers_start_leaves_nothing(scratch_folder: Path) -> None:
    async with started(scratch_folder) as demo:
        await demo.wait_for("Starting PostgreSQL")
        await until(lambda: _answer(any(scratch_folder.iterdir())), "a scratch folder")
        demo.process.send_signal(signal.SIGINT)
        code = await demo.end()
    assert code == 130, demo.text
    assert "Traceback" not in demo.text
    assert left_in(scratch_folder) == []


@pytest.mark.whole
async def test_a_worker_that_ends_by_itself_ends_the_demo_with_a_reason(scratch_folder: Path) -> None:
    async with started(scratch_folder) as demo:
        await demo.wait_for("running")
        # The keeper of the worker names it too, after "--".
        (worker, *_) = (
            pid
            for pid, command in processes_of(scratch_folder).items()
            if "turnstile.worker.cli" in command and " -- " not in command
        )
        os.kill(worker, signal.SIGKILL)
        code = await demo.end()
    assert code == 1, demo.text
    assert "ended by itself" in demo.text
    assert "Traceback" not in demo.text
    assert left_in(scratch_folder) == []


def test_a_missing_server_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object, **__: object) -> LocalServers:
        raise MissingBinaries(["RabbitMQ"], "apt-get install rabbitmq-server")

    monkeypatch.setattr(LocalServers, "start", missing)
    with pytest.raises(CommandFailed, match="apt-get install rabbitmq-server") as failed:
        demo()
    assert failed.value.exit_code == 69


async def _answer(value: bool) -> bool:
    return value
