"""`executor demo` as a new user runs it: it passes, and nothing of it is left."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.commands import Command, left_in
from tests.e2e.commands import started as started_command
from tests.integration.localservers.watching import processes_of
from tests.support.traffic import until
from turnstile.common.cli import CommandFailed
from turnstile.localservers import LocalServers, MissingBinaries
from turnstile.stress.demo import demo

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "turnstile.executor.cli", "demo")

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


# `test_dev.py` holds the file of the variables and the end by Ctrl-C, `test_messages.py` a plain message.
@pytest.mark.whole
async def test_with_stay_the_system_accepts_a_plain_message_and_ends_on_ctrl_c(
    scratch_folder: Path, tmp_path: Path
) -> None:
    kept = ("--folder", str(tmp_path / "kept"))
    async with started(scratch_folder, "--stay", *kept) as demo, httpx.AsyncClient() as http:
        http_url = (await demo.wait_for("HTTP API")).split()[2]
        amqp_url = (await demo.wait_for("TURNSTILE_AMQP_URL=")).partition("=")[2].strip()
        await demo.wait_for("Ctrl-C")
        exported = (tmp_path / "kept" / "env").read_text()
        assert f"export TURNSTILE_AMQP_URL={amqp_url}\n" in exported
        assert f"export TURNSTILE_API_URL={http_url.removesuffix('/api/v1')}\n" in exported
        parameters = f'{{"path": "{ROOT / "examples" / "README.md"}"}}'
        plain = await asyncio.create_subprocess_exec(
            *(sys.executable, "submit_plain.py", amqp_url, "files.count_words", parameters),
            cwd=ROOT / "examples",
        )
        assert await plain.wait() == 0

        async def is_completed() -> bool:
            items = (await http.get(f"{http_url}/executions")).json()["items"]
            return [item["status"] for item in items] == ["completed"]

        await until(is_completed, "the completed execution")
        (counted,) = (await http.get(f"{http_url}/executions")).json()["items"]
        demo.process.send_signal(signal.SIGINT)
        code = await demo.end()
    assert counted["result"]["words"] == len((ROOT / "examples" / "README.md").read_text().split())
    assert code == 0, demo.text
    assert left_in(scratch_folder) == []
    ports = json.loads((tmp_path / "kept" / "ports").read_text())
    assert ports["executor"] == httpx.URL(http_url).port
    assert ports["rabbitmq amqp"] == httpx.URL(amqp_url).port


# `tests/unit/stress/test_demo.py` tests the files without servers.
@pytest.mark.whole
async def test_with_stay_the_next_start_has_the_same_ports_and_variables(
    scratch_folder: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    starts = []
    for _ in range(2):
        async with started(scratch_folder, "--stay", "--folder", str(kept)) as demo:
            await demo.wait_for("Ctrl-C")
            exported, ports = (kept / "env").read_text(), json.loads((kept / "ports").read_text())
            shell = await asyncio.create_subprocess_exec(
                *("bash", "-euc", '. "$0/env"; exec "$1" -m turnstile.executor.cli actions list --json'),
                *(str(kept), sys.executable),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await shell.communicate()
            demo.process.send_signal(signal.SIGINT)
            assert await demo.end() == 0, demo.text
        assert b"files.count_words" in output
        assert left_in(scratch_folder) == []
        starts.append((exported, ports))
    assert starts[0] == starts[1]


def test_a_missing_server_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object, **__: object) -> LocalServers:
        raise MissingBinaries(["RabbitMQ"], "apt-get install rabbitmq-server")

    monkeypatch.setattr(LocalServers, "start", missing)
    with pytest.raises(CommandFailed, match="apt-get install rabbitmq-server") as failed:
        demo()
    assert failed.value.exit_code == 69


def test_without_the_source_it_says_where_to_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.stress.demo.ACTIONS_MODULE", "no_examples_here.actions")
    with pytest.raises(CommandFailed, match="in the folder of the source code") as failed:
        demo(stay=True)
    assert failed.value.exit_code == 2


async def _answer(value: bool) -> bool:
    return value
