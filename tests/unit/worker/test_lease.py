"""The lease: its loss is final and noticed once, and a process that cannot stop its runs ends in time.

The processes have no database: their renewals come from the test.
"""

import asyncio
import sys
import threading
import time

import pytest

from tests.support.traffic import until
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.lifecycle import EXIT_NOT_STOPPED
from turnstile.worker.fence import Standing, Terms
from turnstile.worker.lease import Lease, LeaseThread, clock

SHORT = Terms(lease_seconds=0.6, heartbeat_seconds=0.1)


class _Calls:
    def __init__(self) -> None:
        self.lost = 0
        self.deadlines: list[float | None] = []

    def lease(self, terms: Terms = SHORT) -> Lease:
        return Lease(terms, on_lost=self._count, set_deadline=self.deadlines.append)

    def _count(self) -> None:
        self.lost += 1


async def test_a_lost_lease_stays_lost_whatever_evidence_comes_later() -> None:
    calls = _Calls()
    lease = calls.lease()
    lease.renewed(clock() - 1.0)
    assert lease.standing() is Standing.OVER
    lease.renewed(clock())
    lease.reached_broker(clock())
    assert lease.standing() is Standing.OVER
    assert not await lease.certain()
    assert not await lease.next_renewal()
    await until(lambda: calls.lost == 1)
    assert len(calls.deadlines) == 1


async def test_threads_that_find_the_lease_over_at_once_report_the_loss_once() -> None:
    calls = _Calls()
    lease = calls.lease()
    lease.renewed(clock() - 1.0)
    threads = [threading.Thread(target=lease.standing) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join, 5) for thread in threads))
    await until(lambda: calls.lost > 0)
    assert calls.lost == 1


async def test_a_wait_for_certainty_ends_with_the_next_renewal() -> None:
    lease = _Calls().lease(Terms(lease_seconds=15.0, heartbeat_seconds=5.0))
    waiting = asyncio.create_task(lease.certain())
    lease.renewed(clock() - 13.0)
    lease.reached_broker(clock())
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    await asyncio.to_thread(lease.renewed, clock())
    assert await asyncio.wait_for(waiting, 5)


async def test_the_loss_ends_every_wait_for_a_renewal() -> None:
    lease = _Calls().lease()
    waits = [asyncio.create_task(lease.certain()), asyncio.create_task(lease.next_renewal())]
    await asyncio.wait(waits, timeout=0.05)
    await asyncio.to_thread(lease.lose, "the database ended the lease", given_up=True)
    assert await asyncio.wait_for(asyncio.gather(*waits), 5) == [False, False]
    assert lease.given_up


async def test_each_renewal_and_each_probe_moves_the_deadline_of_the_supervisor() -> None:
    calls = _Calls()
    lease = calls.lease(Terms(lease_seconds=15.0, heartbeat_seconds=5.0))
    now = clock()
    lease.renewed(now)
    lease.reached_broker(now + 20.0)
    # A lease of 15 s has a margin of 3 s, of which the supervisor waits four fifths; a probe counts 3 s.
    assert [round(deadline - now, 3) for deadline in calls.deadlines if deadline] == [14.4, 25.4]


async def test_a_database_that_no_renewal_reaches_is_named_though_the_worker_is_idle() -> None:
    lease = _Calls().lease(Terms(lease_seconds=15, heartbeat_seconds=5))
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    thread = LeaseThread(lease, nowhere, WorkerId("w"), not_ready=lambda: None, on_drain=lambda: None)
    thread.start()
    try:
        await until(lambda: "no server accepts connections" in (thread.database_error or ""), "the reason")
    finally:
        await thread.stop()


_PROCESS = """
import asyncio, sys, time
from turnstile.common.domain.identifiers import WorkerId
from turnstile.worker.fence import Terms
from turnstile.worker.lease import Lease, LeaseThread, clock

async def main():
    lease = Lease(
        Terms(lease_seconds=1.5, heartbeat_seconds=0.5),
        on_lost=lambda: ON_LOST,
        set_deadline=lambda _: None,
    )
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    thread = LeaseThread(lease, nowhere, WorkerId("w"), not_ready=lambda: None, on_drain=lambda: None)
    thread.start()
    lease.renewed(clock())
    print(time.time(), flush=True)
    THEN
    await thread.stop()
    print(lease.lost, flush=True)

asyncio.run(main())
"""


async def _run(*, then: str, on_lost: str = "None") -> tuple[int, list[str], float]:
    """Return the exit code, the output, and the seconds from the renewal to the end."""
    source = _PROCESS.replace("THEN", then).replace("ON_LOST", on_lost)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    ended_at = time.time()
    lines = output.decode().split()
    assert lines, errors.decode()
    assert process.returncode is not None
    return process.returncode, lines, ended_at - float(lines[0])


@pytest.mark.parametrize(
    ("then", "seconds_min"),
    [
        pytest.param("time.sleep(20)", 0.9, id="the event loop is blocked"),
        pytest.param("lease.lose('lost', given_up=True); time.sleep(20)", 0.0, id="blocked after the loss"),
        pytest.param("thread._lease = None; time.sleep(20)", 0.0, id="the lease thread fails"),
    ],
)
async def test_a_process_that_cannot_stop_its_runs_ends_before_its_lease(
    then: str, seconds_min: float
) -> None:
    code, _, seconds = await _run(then=then)
    assert code == EXIT_NOT_STOPPED
    assert seconds_min < seconds < 5.0


async def test_a_process_that_stops_its_runs_in_time_goes_on() -> None:
    code, lines, _ = await _run(then="await asyncio.sleep(2)", on_lost="lease.all_stopped.set()")
    assert (code, lines[1]) == (0, "True")
