"""The private installation: it serves, faults can be injected and are repaired, and nothing of it is left.

The installation starts servers and services of its own, which the faults end.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.integration.localservers.watching import processes_of
from tests.support.traffic import until
from turnstile.stress.installation import Api, Json
from turnstile.stress.local.faults import LocalSystem
from turnstile.stress.local.system import running_locally
from turnstile.stress.scenario import FaultKind, PlannedFault

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.whole]

_DEADLINE_SECONDS = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(local_binaries: None) -> AsyncIterator[LocalSystem]:
    """One executor, and one worker of concurrency 1; settings of the user are ignored."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TURNSTILE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
        monkeypatch.setenv("TURNSTILE_WORKER_POOLS", "of-another-system")
        lines: list[str] = []
        async with running_locally(
            executors=1, workers=1, concurrency=1, actions=2, lease_seconds=15.0, say=lines.append
        ) as started:
            yield started
    assert lines[-1] == "Starting 1 executor and 1 worker"
    assert processes_of(_scratch(started)) == {}
    assert not _scratch(started).exists()


@pytest_asyncio.fixture(loop_scope="module")
async def api(system: LocalSystem) -> AsyncIterator[Api]:
    async with Api(system.installation) as api:
        yield api


async def test_a_killed_worker_starts_again_with_another_id(system: LocalSystem, api: Api) -> None:
    before = await _worker(api)
    fault = await system.inject(_planned(FaultKind.KILL_WORKER, lasting_seconds=0.2))
    after = await _worker(api)
    assert (fault.target, fault.lost_worker) == ("worker-1", before["id"])
    assert before["name"] == after["name"] == "worker-1"
    assert before["id"] != after["id"]
    assert fault.began_at < system.exits()[before["pid"]] < fault.healed_at
    assert after["pid"] not in system.exits()
    assert system.collapses == ()


async def test_a_killed_executor_starts_again_at_the_same_url(system: LocalSystem) -> None:
    (url,) = system.installation.http_urls
    fault = await system.inject(_planned(FaultKind.KILL_EXECUTOR))
    async with httpx.AsyncClient(trust_env=False) as http:

        async def ready() -> bool:
            return (await http.get(f"{url}/readyz")).status_code == 200

        await until(ready, "the executor is ready")
    assert (fault.target, fault.lost_worker) == ("executor-1", None)


async def test_a_paused_worker_is_frozen_and_resumed(system: LocalSystem, api: Api) -> None:
    before = await _worker(api)
    pausing = asyncio.create_task(system.inject(_planned(FaultKind.PAUSE_WORKER, lasting_seconds=1.0)))
    await until(lambda: _state(before["pid"]) == "T", "the frozen worker")
    fault = await pausing
    assert _state(before["pid"]) != "T"
    assert fault.healed_at - fault.began_at >= 1_000_000_000
    assert (await _worker(api))["id"] == fault.lost_worker == before["id"]


async def test_a_purge_takes_what_a_worker_sends_meanwhile(system: LocalSystem) -> None:
    messages = 0
    # Without an executor all that the worker sends waits in its queue.
    while messages < 1:
        killing = asyncio.create_task(system.inject(_planned(FaultKind.KILL_EXECUTOR, lasting_seconds=6.0)))
        purge = await system.inject(_planned(FaultKind.PURGE_QUEUES, lasting_seconds=6.0))
        await killing
        messages += int(purge.target.removesuffix(" messages"))


def _planned(kind: FaultKind, *, lasting_seconds: float = 0.0) -> PlannedFault:
    return PlannedFault(kind=kind, at_seconds=0.0, lasting_seconds=lasting_seconds)


def _scratch(system: LocalSystem) -> Path:
    return _folder(system).parents[1]


def _folder(system: LocalSystem) -> Path:
    assert system.installation.trace_folder is not None
    return system.installation.trace_folder


async def _worker(api: Api) -> Json:
    """Return the newest worker, which is the running one."""
    return (await api.live_workers())[0]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
