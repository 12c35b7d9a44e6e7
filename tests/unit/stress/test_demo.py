"""`executor demo --stay` keeps its ports and the file of the variables; no server is started."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.support.traffic import until
from turnstile.localservers import ports
from turnstile.localservers.ports import free_port
from turnstile.stress import demo
from turnstile.stress.local.launcher import Deployment, System


@asynccontextmanager
async def _system_without_servers(_: Console, source: Path) -> AsyncIterator[tuple[Any, System]]:
    """Pick the ports as the servers and services do."""
    deployment = Deployment(
        database_url=f"postgresql://postgres@127.0.0.1:{free_port('postgresql')}/turnstile",
        amqp_url=f"amqp://guest:guest@127.0.0.1:{free_port('rabbitmq amqp')}/turnstile",
        folder=source,
        importable=source,
    )
    servers = SimpleNamespace(rabbitmq=SimpleNamespace(management_url="http://127.0.0.1:15672"))
    yield servers, System(deployment=deployment, executors=(deployment.executor("executor"),), workers=())


async def _printed(folder: Path) -> str:
    """Return what one start prints."""
    output = StringIO()
    staying = asyncio.create_task(demo._stay(Console(file=output), folder))
    await until(lambda: staying.done() or "Ctrl-C stops everything" in output.getvalue(), "it stays")
    staying.cancel()
    with suppress(asyncio.CancelledError):
        await staying
    return output.getvalue()


async def test_each_start_writes_the_same_variables_unless_another_program_has_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_system_to_try", _system_without_servers)
    # The reservations of this process stand for those of an earlier one.
    monkeypatch.setattr(ports, "_reserve", lambda _: True)
    printed = await _printed(tmp_path)
    exported, kept = (tmp_path / "env").read_text(), json.loads((tmp_path / "ports").read_text())
    assert sorted(kept) == ["executor", "postgresql", "rabbitmq amqp"]
    assert exported.splitlines() == [
        f"export TURNSTILE_DATABASE_URL=postgresql://postgres@127.0.0.1:{kept['postgresql']}/turnstile",
        f"export TURNSTILE_AMQP_URL=amqp://guest:guest@127.0.0.1:{kept['rabbitmq amqp']}/turnstile",
        f"export TURNSTILE_API_URL=http://127.0.0.1:{kept['executor']}",
    ]
    for line in exported.splitlines():
        assert line in printed
    assert f"'. {tmp_path / 'env'}' sets the same" in printed
    assert await _printed(tmp_path) == printed
    assert (tmp_path / "env").read_text() == exported
    taken = await asyncio.start_server(lambda *_: None, ports.LOOPBACK, kept["executor"])
    async with taken:
        await _printed(tmp_path)
    moved = json.loads((tmp_path / "ports").read_text())
    assert moved.pop("executor") != kept.pop("executor")
    assert moved == kept
    assert f"127.0.0.1:{kept['postgresql']}/" in (tmp_path / "env").read_text()
