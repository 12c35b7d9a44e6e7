"""The life of a worker process: signals, process 1 of a container, a blocked loop, readiness.

Each test needs a process: it sends it signals, looks at its children, or blocks its event loop. What a worker
decides has unit tests (`tests/unit/worker_core`).
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support.processes import CERTIFICATES
from tests.support.traffic import until
from tests.support.worker_process import worker_process
from turnstile.common.exit_codes import ExitCode
from turnstile.testing.worker_check.leader import ScriptedLeader

MODULE = "tests.support.core_actions"


async def test_sigterm_returns_what_has_not_started_and_finishes_the_rest(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        await leader.offer("core.wait", 1, 2, 3, at_once=1, parameters=b'{"seconds": 1.0}')
        await until(lambda: leader.started() == [1], "the start")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.returns().keys() == {2, 3}
        assert leader.ends()[1].result == b'"waited"'
        assert leader.has_left
        assert not leader.heartbeats[-1].is_taking


@pytest.mark.parametrize("is_worker_first", [True, False])
async def test_what_dies_of_the_sigterm_that_stops_the_worker_is_returned(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path, *, is_worker_first: bool
) -> None:
    """A service manager may send SIGTERM to every process of a service, in any order."""
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        files = [tmp_path / name for name in ("child", "loop")]
        child, loop = (json.dumps({"path": str(file)}).encode() for file in files)
        await leader.offer("core.sleeping", 1)
        await leader.offer("core.child", 2, parameters=child)
        await leader.offer("core.program", 3, parameters=loop)
        await leader.offer("core.wait", 4, parameters=b'{"seconds": 2.0}')
        await until(lambda: set(leader.started()) == {1, 2, 3, 4}, "the starts")
        await until(lambda: all(file.exists() for file in files), "the programs")
        await until(lambda: _programs_below(worker.process.pid) == 3, "the programs")
        pids = [worker.process.pid, *_below(worker.process.pid)]
        for pid in pids if is_worker_first else reversed(pids):
            os.kill(pid, signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.returns().keys() == {1, 2, 3}
        assert all(each.had_started for each in leader.returns().values())
        assert leader.ends()[4].result == b'"waited"'
        assert leader.ends().keys() == {4}


def _below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = [int(each) for each in _read(f"/proc/{pid}/task/{pid}/children").split()]
    return [*found, *(each for child in found for each in _below(child))]


def _state(pid: int) -> str:
    return "".join(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1])


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").strip()


def _read(path: str) -> str:
    """Return a file of /proc; nothing if its process has ended."""
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _programs_below(pid: int) -> int:
    return [_name(each) for each in _below(pid)].count("sleep")


_AS_PROCESS_ONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.skipif(
    subprocess.run([*_AS_PROCESS_ONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="a new PID namespace is not permitted here",
)
async def test_a_worker_that_is_process_one_leaves_no_zombies_and_drains(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, within=_AS_PROCESS_ONE) as worker:
        await leader.is_served()
        await leader.offer("core.orphans", 1, 2, 3)
        await leader.ended(1, 2, 3)
        await until(lambda: _programs_below(worker.process.pid) == 0, "the end of the orphans")
        await until(lambda: "Z" not in map(_state, _below(worker.process.pid)), "all of them are reaped")
        await leader.offer("core.wait", 4, parameters=b'{"seconds": 1.0}')
        await until(lambda: 4 in leader.started(), "the start")
        os.kill(_below(worker.process.pid)[0], signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.ends()[4].result == b'"waited"'


async def test_a_run_that_cannot_be_stopped_ends_its_process_and_returns_nothing(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, TURNSTILE_DRAIN_TIMEOUT="500ms") as worker:
        await leader.is_served()
        await leader.offer("core.deaf", 1)
        await until(lambda: leader.started() == [1], "the start")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == ExitCode.NOT_STOPPED
        assert not leader.returns()
        assert not leader.has_left
        assert "not_stopped_in_time" in worker.text()


async def test_a_second_signal_ends_the_process_at_once(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        await leader.offer("core.wait", 1)
        await until(lambda: leader.started() == [1], "the start")
        worker.signal(signal.SIGTERM)
        await until(lambda: "draining" in worker.text(), "the drain")
        worker.signal(signal.SIGTERM)
        await worker.ended(10.0)
        assert not leader.has_left


async def test_a_blocked_loop_costs_neither_the_lease_nor_the_answer_to_a_recall(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    settings = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "300ms"}
    async with worker_process(amqp_url, tmp_path, MODULE, **settings) as worker:
        await leader.is_served()
        await leader.offer("core.block", 1, 2, at_once=1, parameters=b'{"seconds": 7}')
        # Reported by the thread, because the loop of the run is blocked from its start on.
        await until(lambda: leader.started() == [1], "the start")
        began, count = time.monotonic(), len(leader.heartbeats)
        await leader.recall("core.block", 2)
        await until(lambda: 2 in leader.returns(), "the return")
        assert time.monotonic() - began < 5
        assert 1 not in leader.ends()
        (end,) = await leader.ended(1)
        assert end.result == b'"blocked"'
        assert len({each.sender.worker_id for each in leader.heartbeats}) == 1
        assert len(leader.heartbeats) - count > 10
        assert "The event loop of the worker is blocked at core_actions.py" in (
            "".join(piece.text for piece in leader.pieces) + (end.log or "")
        )
        assert "lease_lost" not in worker.text()


async def test_readiness_and_metrics_show_broker_executor_and_lease(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    settings = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "300ms"}
    async with worker_process(
        amqp_url, tmp_path, MODULE, **settings, TURNSTILE_WORKER_HTTP_PORT="0"
    ) as worker:
        await leader.is_served()
        (port,) = re.findall(r"health_serving .*port=(\d+)", worker.text())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=CERTIFICATES) as http:
            ready = (await http.get("/readyz")).json()
            assert (ready["status"], ready["parts"]) == ("ready", {"broker": None, "executor": None})
            await leader.offer("core.wait", 1)
            await until(lambda: leader.started() == [1], "the start")
            metrics = (await http.get("/metrics")).text
            assert "turnstile_worker_running 1" in metrics
            assert "turnstile_worker_lease_age_seconds 0." in metrics
            leader.is_answering = False

            async def is_unready() -> bool:
                answer = await http.get("/readyz")
                return answer.status_code == 503 and "no executor answers" in answer.json()["detail"]

            await until(is_unready, "no answers", deadline_seconds=20)
