"""A service: awaited, started again where it ends by itself, and gone at the end."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.integration.localservers.watching import processes_of
from turnstile.localservers import ServerFailed
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without, serving

_DEADLINE_SECONDS = 20.0


def web_server(folder: Path) -> Service:
    """A service that answers /readyz: a file of that name is in its folder."""
    (folder / "readyz").touch()
    port = free_port()
    arguments = ["http.server", str(port), "--bind", "127.0.0.1"]
    return service(folder, arguments, port=port)


def service(folder: Path, arguments: list[str], *, port: int | None = None) -> Service:
    environment = environment_without("TURNSTILE_", importable=folder)
    return Service(name="served", arguments=arguments, folder=folder, environment=environment, port=port)


async def test_a_service_is_ready_on_entry_and_gone_on_exit(tmp_path: Path) -> None:
    served = web_server(tmp_path)
    async with serving([served], last_signal=signal.SIGTERM), httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{served.url}/readyz")).status_code == 200
        assert served.pid in served.family()
    assert processes_of(tmp_path) == {}


async def test_a_service_that_ends_by_itself_is_recorded_and_started_again(tmp_path: Path) -> None:
    served = web_server(tmp_path)
    async with (
        serving([served], last_signal=signal.SIGKILL, restart_failed=True),
        httpx.AsyncClient(trust_env=False) as http,
        asyncio.timeout(_DEADLINE_SECONDS),
    ):
        os.kill(served.pid, signal.SIGKILL)
        while served.starts < 2:
            await asyncio.sleep(0.02)
        await served.ready(http)
    assert [collapse.exit_code for collapse in served.collapses] == [128 + signal.SIGKILL]


async def test_a_service_that_ends_during_its_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    missing = service(tmp_path, ["no_such_module"], port=free_port())
    with pytest.raises(ServerFailed, match=r"(?s)served ended by itself.*No module named no_such_module"):
        async with serving([missing], last_signal=signal.SIGKILL):
            pytest.fail("the service was yielded")


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    served = web_server(tmp_path)
    starting = asyncio.create_task(served.start())
    # Two passes of the event loop: its thread has started.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert served.starts == 1
    await served.end(signal.SIGKILL)
    assert processes_of(tmp_path) == {}


def test_settings_of_the_user_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_AMQP_URL", "amqp://another")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = environment_without("TURNSTILE_", importable=Path("/source"))
    assert "TURNSTILE_AMQP_URL" not in environment
    assert environment["PYTHONPATH"] == "/source:/elsewhere"
    assert environment["PATH"] == os.environ["PATH"]
