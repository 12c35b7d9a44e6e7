"""The life of a worker process: drain, signals, hooks, a blocked loop, a lost lease, cut connections."""

import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.support.processes import CERTIFICATES
from tests.support.proxy import Proxy
from tests.support.scripted_leader import ScriptedLeader, worker_process
from tests.support.traffic import until
from turnstile.common.exit_codes import ExitCode

MODULE = "tests.support.core_actions"
STARTED = "tests.support.core_started_actions"


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
        child = json.dumps({"path": str(files[0]), "how": "runs a program"}).encode()
        loop = json.dumps({"path": str(files[1])}).encode()
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


async def test_what_dies_of_another_sigterm_has_failed(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        await leader.offer("core.sleeping", 1)
        await until(lambda: _programs_below(worker.process.pid) == 1, "the program")
        (pid,) = [each for each in _below(worker.process.pid) if _name(each) == "sleep"]
        os.kill(pid, signal.SIGTERM)
        (end,) = await leader.ended(1)
        assert end.error == ("ExitCode", "the command was killed by SIGTERM")


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


async def test_a_worker_whose_log_is_not_read_continues_to_work(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "log")
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)
    within = ("sh", "-c", 'exec "$0" "$@" >"$FIFO" 2>&1')
    settings = {"TURNSTILE_LOG_LEVEL": "DEBUG", "FIFO": str(tmp_path / "log")}
    try:
        async with worker_process(amqp_url, tmp_path, MODULE, within=within, **settings) as worker:
            await leader.is_served()
            for first in range(1, 2001, 100):
                await leader.offer("core.nothing", *range(first, first + 100))
            await leader.ended(*range(1, 2001))
            # The pipe is full.
            assert not select.select([], [log], [], 0)[1]
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert leader.has_left
    finally:
        os.close(log)


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


async def test_a_drain_returns_what_does_not_end_in_time(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE, TURNSTILE_DRAIN_TIMEOUT="500ms") as worker:
        await leader.is_served()
        await leader.offer("core.wait", 1)
        await until(lambda: leader.started() == [1], "the start")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert leader.returns()[1].had_started
        assert "execution_returned execution_id=1" in worker.text()


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


async def test_a_thread_that_outlives_its_attempt_ends_the_process_of_a_drain(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with worker_process(amqp_url, tmp_path, MODULE) as worker:
        await leader.is_served()
        given = json.dumps({"path": str(tmp_path / "never")}).encode()
        await leader.offer("core.threaded", 1, parameters=given)
        await leader.ended(1)
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == ExitCode.NOT_STOPPED


async def test_a_worker_registers_while_its_start_fails_and_takes_offers_after_it(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    file = tmp_path / "model"
    async with worker_process(amqp_url, tmp_path, STARTED, CORE_STARTED_FILE=str(file)) as worker:
        await until(lambda: bool(leader.heartbeats) and "FileNotFound" in _not_ready(leader), "the failure")
        assert not leader.heartbeats[-1].is_taking
        assert leader.hello.definitions
        await leader.offer("started.use", 1)
        await until(lambda: 1 in leader.returns(), "its return")
        file.write_text("model")
        await until(lambda: leader.heartbeats[-1].is_taking, "its readiness")
        assert leader.heartbeats[-1].not_ready is None
        await leader.recall("started.use", 1)
        await leader.offer("started.use", 2)
        (end,) = await leader.ended(2)
        assert end.result == b'"model"'
        assert "start_failed where=worker" in worker.text()


def _not_ready(leader: ScriptedLeader) -> str:
    return leader.heartbeats[-1].not_ready or ""


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


async def test_without_an_answer_nothing_starts_and_a_cancel_kills_at_once(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    settings = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "300ms"}
    async with worker_process(amqp_url, tmp_path, MODULE, **settings, TURNSTILE_STOP_GRACE="60s") as worker:
        await leader.is_served()
        await leader.offer("core.wait", 1, 2)
        await until(lambda: leader.started() == [1, 2], "the starts")
        leader.is_answering = False
        await until(lambda: "lease_not_renewed" in worker.text(), "the doubt", deadline_seconds=20)
        await leader.offer("core.nothing", 3)
        await leader.cancel(1)
        (end,) = await leader.ended(1)
        assert end.error == ("Cancelled", "cancelled on request")
        # The probes show that a cancel would arrive, so what runs goes on for longer than the lease.
        count = len(leader.heartbeats) + 14
        await until(lambda: len(leader.heartbeats) > count, "more than a lease")
        assert leader.ends().keys() == {1}
        assert "lease_lost" not in worker.text()
        leader.is_answering = True
        await leader.ended(3)
        await until(lambda: "lease_not_renewed_over" in worker.text(), "the end of the doubt")


async def test_after_a_cut_connection_the_session_goes_on_with_what_it_holds(
    amqp_url: str, leader: ScriptedLeader, tmp_path: Path
) -> None:
    async with Proxy(amqp_url).listening() as proxy, worker_process(proxy.url, tmp_path, MODULE) as worker:
        await leader.is_served()
        await leader.offer("core.wait", 1, parameters=b'{"seconds": 4.0}')
        await until(lambda: leader.started() == [1], "the start")
        first = leader.hello.sender
        proxy.cut()
        await until(lambda: leader.hello.sender.session > first.session, "the next session")
        assert leader.hello.sender.worker_id == first.worker_id
        await leader.offer("core.nothing", 2)
        await leader.ended(1, 2)
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
