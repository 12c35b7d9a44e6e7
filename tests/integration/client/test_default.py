"""The client of a process: made at the first submit, shared, closed at the end; and what an outage prints.

Each program needs a process: what it leaves or prints at its end is the rule.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client.fake_executor import Background, run_fake_executor
from tests.support.http_server import answering
from tests.support.proxy import LinkState, proxy_to
from turnstile.client import AsyncClient, Unavailable

_ACTIONS = """
from turnstile import Rejected, Unavailable, action


@action("add")
def add(a: int, b: int = 2) -> int:
    return a + b


async def submit(a: int) -> int:
    return (await add.submit(a)).id

"""
_ACCEPTED = {"status": "queued", "position": 1, "duplicate": False}


class _Api:
    """Accepts requests: the id of an execution is its parameter `a`."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        numbers = [int(each["parameters"]["a"]) for each in json.loads(body)]
        self.submitted += numbers
        return 202, json.dumps({"items": [{"id": number, **_ACCEPTED} for number in numbers]}).encode()


def _run(folder: Path, program: str, **settings: str) -> str:
    """Run a program that imports the actions; return what it prints. It must print nothing to stderr."""
    (folder / "actions.py").write_text(_ACTIONS)
    (folder / "program.py").write_text(f"from actions import *\n{program}")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")}
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "program.py"],
        cwd=folder,
        env=clean | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_every_event_loop_thread_and_reload_shares_the_client(tmp_path: Path) -> None:
    program = """
import asyncio, threading
asyncio.run(submit(1))
asyncio.run(submit(2))
thread = threading.Thread(target=lambda: add.submit_sync(3))
thread.start()
thread.join()
async def main():
    # As in a notebook: a running loop, which is blocked meanwhile.
    add.submit_sync(4)
    await asyncio.gather(*map(submit, (5, 6)))
asyncio.run(main())
print(sum(thread.name == "turnstile-client" for thread in threading.enumerate()))

# A reload of the application's code, without and with a client of its own.
import importlib, os
import actions
from turnstile import Client, use_client
def open_sockets():
    return sum("socket:" in os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))
before = open_sockets(), threading.active_count()
importlib.reload(actions).add.submit_sync(7)
for number in (8, 9):
    with Client.from_env() as client, use_client(client):
        importlib.reload(actions).add.submit_sync(number)
print((open_sockets(), threading.active_count()) == before)
"""
    api = _Api()
    with answering(api.answer) as url:
        assert _run(tmp_path, program, TURNSTILE_API_URL=url) == "1\nTrue\n"
    assert sorted(api.submitted) == list(range(1, 10))


def test_a_forked_process_leaves_the_connections_of_its_parent_alone(tmp_path: Path, amqp_url: str) -> None:
    program = """
import gc, os, sys
print(add.submit_sync(1).id, flush=True)
for _ in range(3):
    child = os.fork()
    if child == 0:
        print(add.submit_sync(2).id, flush=True)
        gc.collect()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    print(add.submit_sync(3).id, flush=True)
"""
    with Background(amqp_url) as background:
        ids = _run(tmp_path, program, TURNSTILE_AMQP_URL=amqp_url).split()
        assert ids == [str(number) for number in range(1, 8)]
        # Each was sent once: the parent never had to connect again.
        assert background.executor is not None
        assert len(background.executor.deliveries) == 7


def test_an_outage_prints_nothing(tmp_path: Path, unused_tcp_port: int) -> None:
    program = f"""
import os
from turnstile import Client
for variable, scheme in (("TURNSTILE_API_URL", "http"), ("TURNSTILE_AMQP_URL", "amqp")):
    os.environ[variable] = f"{{scheme}}://127.0.0.1:{unused_tcp_port}"
    with Client.from_env(answer_timeout="1s") as client:
        try:
            client.submit("add", {{"a": 1}})
        except Unavailable as error:
            print(type(error).__name__, error)
    del os.environ[variable]
"""
    over_http, over_amqp = _run(tmp_path, program).splitlines()
    assert "127.0.0.1" in over_http
    assert "NotReceived" in over_http
    assert "127.0.0.1" in over_amqp
    assert "Unavailable" in over_amqp


async def test_a_lost_broker_logs_nothing_of_the_libraries(
    amqp_url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        run_fake_executor(amqp_url) as executor,
        proxy_to(amqp_url) as proxy,
        AsyncClient(amqp_url=proxy.url, answer_timeout="2s") as client,
    ):
        await client.submit("noop")
        proxy.cut()
        await client.submit("noop")
        await client.submit("noop")
        proxy.state = LinkState(refuses=True)
        with pytest.raises(Unavailable):
            await client.submit("noop")
    assert len(executor.admitted) == 3
    names = {each.name.partition(".")[0] for each in caplog.records if each.levelno >= logging.WARNING}
    assert names <= {"turnstile"}
    assert capfd.readouterr().err == ""
