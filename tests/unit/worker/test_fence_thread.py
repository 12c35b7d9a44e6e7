"""The last resort: a process that cannot stop what it runs ends itself, before its lease ends.

Each runs in a process of its own, whose database nobody answers for: the renewals come from the test.
"""

import asyncio
import sys
import time

from turnstile.common.lifecycle import EXIT_NOT_STOPPED

_PROCESS = """
import asyncio, sys, time
from turnstile.common.domain.identifiers import WorkerId
from turnstile.worker.clock import clock
from turnstile.worker.fence import Terms
from turnstile.worker.lease import Lease
from turnstile.worker.lease_thread import LeaseThread

async def main():
    lease = Lease(
        Terms(lease_seconds=1.5, heartbeat_seconds=0.5),
        on_lost=lambda: ON_LOST,
        hold_until=lambda _: None,
    )
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    thread = LeaseThread(lease, nowhere, WorkerId("w"), on_drain=lambda: None)
    thread.start()
    lease.renewed(clock())
    print(time.time(), flush=True)
    THEN
    await thread.stop()
    print(lease.lost, flush=True)

asyncio.run(main())
"""


async def _run(*, then: str, on_lost: str = "None") -> tuple[int, list[str], float]:
    """Return the exit code, what it printed, and how long after its renewal it ended."""
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


async def test_a_blocked_loop_does_not_outlive_the_lease() -> None:
    code, _, seconds = await _run(then="time.sleep(20)")
    assert code == EXIT_NOT_STOPPED
    assert 0.9 < seconds < 5.0


async def test_a_blocked_loop_does_not_outlive_the_word_that_the_lease_is_lost() -> None:
    code, _, seconds = await _run(then="lease.lose('given up', given_up=True); time.sleep(20)")
    assert code == EXIT_NOT_STOPPED
    assert seconds < 5.0


async def test_what_is_stopped_in_time_ends_no_process() -> None:
    code, lines, _ = await _run(then="await asyncio.sleep(2)", on_lost="lease.all_stopped()")
    assert code == 0
    assert lines[1] == "True"


async def test_a_thread_that_fails_takes_the_process_with_it() -> None:
    code, _, seconds = await _run(then="thread._lease = None; time.sleep(20)")
    assert code == EXIT_NOT_STOPPED
    assert seconds < 5.0
