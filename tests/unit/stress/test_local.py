"""The private installation of the harness: it serves, can be broken and heals, and nothing of it is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aio_pika
import httpx
import pytest
import pytest_asyncio

from tests.integration.localservers.watching import processes_of
from turnstile.common.broker.topology import pool_queue
from turnstile.localservers import MissingBinaries
from turnstile.localservers.binaries import install_missing
from turnstile.stress.api import Api, Json
from turnstile.stress.local.system import LocalSystem, running_locally
from turnstile.stress.names import POOL, action_ref
from turnstile.stress.stage import FaultKind, PlannedFault

pytestmark = pytest.mark.asyncio(loop_scope="module")

_DEADLINE_SECONDS = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[LocalSystem]:
    """One executor, and one worker that runs one at a time; whatever the user has set is for another."""
    try:
        install_missing()
    except MissingBinaries as missing:
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TURNSTILE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
        monkeypatch.setenv("TURNSTILE_WORKER_POOLS", "of-another-system")
        said: list[str] = []
        async with running_locally(
            executors=1, workers=1, concurrency=1, actions=2, lease_seconds=15.0, say=said.append
        ) as lent:
            yield lent
    assert said[-1] == "Starting 1 executor and 1 worker"
    assert processes_of(_scratch(lent)) == {}
    assert not _scratch(lent).exists()


@pytest_asyncio.fixture(loop_scope="module")
async def api(system: LocalSystem) -> AsyncIterator[Api]:
    async with Api(system.installation) as api:
        yield api


async def test_it_serves_the_actions_of_the_harness_and_their_runs_leave_marks(system: LocalSystem) -> None:
    assert await _ends(system, await _submit(system, [1.0])) == ["completed"]
    assert [path.stat().st_size > 0 for path in _marks(system)] == [True]


async def test_a_killed_worker_is_gone_and_comes_back_under_another_id(system: LocalSystem, api: Api) -> None:
    before = await _worker(api)
    fault = await system.inject(_planned(FaultKind.KILL_WORKER, lasting_seconds=0.2))
    after = await _worker(api)
    assert (fault.target, fault.lost_worker) == ("worker-1", before["id"])
    assert before["name"] == after["name"] == "worker-1"
    assert before["id"] != after["id"]
    assert fault.began_at < system.deaths()[before["pid"]] < fault.healed_at
    assert after["pid"] not in system.deaths()
    assert system.collapses == ()


async def test_a_killed_executor_comes_back_at_the_same_address(system: LocalSystem) -> None:
    (url,) = system.installation.http_urls
    fault = await system.inject(_planned(FaultKind.KILL_EXECUTOR))
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{url}/readyz")).status_code == 200
    assert (fault.target, fault.lost_worker) == ("executor-1", None)


async def test_a_paused_worker_stands_still_and_goes_on(system: LocalSystem, api: Api) -> None:
    before = await _worker(api)
    pausing = asyncio.create_task(system.inject(_planned(FaultKind.PAUSE_WORKER, lasting_seconds=1.0)))
    await _until(lambda: _is(_state(before["pid"]) == "T"), "the worker stands still")
    fault = await pausing
    assert _state(before["pid"]) != "T"
    assert fault.healed_at - fault.began_at >= 1_000_000_000
    assert (await _worker(api))["id"] == fault.lost_worker == before["id"]


async def test_one_that_ends_by_itself_is_noted_and_started_again(system: LocalSystem, api: Api) -> None:
    before = await _worker(api)
    assert await _ends(system, await _submit(system, [0.0])) == ["completed"]
    os.kill(before["pid"], signal.SIGKILL)
    await _until(lambda: _has_another(api, before["id"]), "another worker")
    assert [(c.name, c.exit_code) for c in system.collapses] == [("worker-1", 128 + signal.SIGKILL)]
    # Nobody announced its end, but it had run something.
    assert before["pid"] in system.deaths()


async def test_a_restarted_database_serves_as_before(system: LocalSystem) -> None:
    fault = await system.inject(_planned(FaultKind.RESTART_DATABASE))
    assert fault.target == "database"
    assert await _ends(system, await _submit(system, [0.0])) == ["completed"]


async def test_a_purge_takes_what_comes_by_where_nothing_stands(system: LocalSystem) -> None:
    purging = asyncio.create_task(system.inject(_planned(FaultKind.PURGE_QUEUES, lasting_seconds=30.0)))
    # It ends when it has taken enough; half of the offers and ends come by where it consumes too.
    while not purging.done():
        await _submit(system, [0.0] * 5)
    messages = int((await purging).target.removesuffix(" messages"))
    assert messages >= 20


async def test_a_purge_throws_away_the_offers_that_nobody_has_taken(system: LocalSystem) -> None:
    # One at a time, so that most of them stand in the queue.
    await _submit(system, [1000.0] * 20)
    await _until(lambda: _stands(system, 10), "offers in the queue")
    fault = await system.inject(_planned(FaultKind.PURGE_QUEUES, lasting_seconds=0.1))
    assert int(fault.target.removesuffix(" messages")) >= 10
    assert await _standing(system) == 0


def _planned(kind: FaultKind, *, lasting_seconds: float = 0.0) -> PlannedFault:
    return PlannedFault(kind=kind, at_seconds=0.0, lasting_seconds=lasting_seconds)


def _scratch(system: LocalSystem) -> Path:
    return _folder(system).parents[1]


def _folder(system: LocalSystem) -> Path:
    assert system.installation.marks_folder is not None
    return system.installation.marks_folder


def _marks(system: LocalSystem) -> list[Path]:
    return list(_folder(system).glob("*.marks"))


async def _submit(system: LocalSystem, milliseconds: list[float]) -> list[int]:
    bodies = [
        {"action_ref": action_ref(0), "parameters": {"number": number, "milliseconds": each}}
        for number, each in enumerate(milliseconds)
    ]
    async with _http(system) as http:
        answer = await http.post("/executions", json=bodies)
    assert answer.status_code == 202, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def _ends(system: LocalSystem, ids: list[int]) -> list[str]:
    async with _http(system) as http:

        async def statuses() -> list[str]:
            return [(await http.get(f"/executions/{each}")).json()["status"] for each in ids]

        async def have_ended() -> bool:
            return not {"queued", "scheduled", "running"} & set(await statuses())

        await _until(have_ended, "the ends")
        return await statuses()


def _http(system: LocalSystem) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"{system.installation.http_urls[0]}/api/v1", trust_env=False, timeout=_DEADLINE_SECONDS
    )


async def _worker(api: Api) -> Json:
    """The worker that came last, which is the one that runs."""
    return (await api.live_workers())[0]


async def _has_another(api: Api, worker_id: str) -> bool:
    return bool((await _worker(api))["id"] != worker_id)


async def _stands(system: LocalSystem, count: int) -> bool:
    return await _standing(system) >= count


async def _standing(system: LocalSystem) -> int:
    url = system.installation.amqp_url.get_secret_value()
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(pool_queue(POOL))
        return queue.declaration_result.message_count or 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


async def _is(value: bool) -> bool:
    return value


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.05)
