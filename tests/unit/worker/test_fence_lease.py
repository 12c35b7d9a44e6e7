"""The lease as a worker knows it: found over once it is over for good, from whichever thread it is asked."""

import asyncio
import threading

from tests.unit.worker.waiting import until
from turnstile.worker.clock import clock
from turnstile.worker.fence import Standing, Terms
from turnstile.worker.lease import Lease

SHORT = Terms(lease_seconds=0.6, heartbeat_seconds=0.1)


class _Told:
    def __init__(self) -> None:
        self.lost = 0
        self.deadlines: list[float | None] = []

    def lease(self, terms: Terms = SHORT) -> Lease:
        return Lease(terms, on_lost=self._count, hold_until=self.deadlines.append)

    def _count(self) -> None:
        self.lost += 1


async def test_a_lease_found_over_stays_over_whatever_is_learned_later() -> None:
    told = _Told()
    lease = told.lease()
    lease.renewed(clock() - 1.0)
    assert lease.standing() is Standing.OVER
    lease.renewed(clock())
    lease.reached_broker(clock())
    assert lease.standing() is Standing.OVER
    assert not await lease.certain()
    assert not await lease.next_renewal()
    await until(lambda: told.lost == 1)
    assert len(told.deadlines) == 1


async def test_many_threads_that_find_it_over_tell_it_once() -> None:
    told = _Told()
    lease = told.lease()
    lease.renewed(clock() - 1.0)
    threads = [threading.Thread(target=lease.standing) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join, 5) for thread in threads))
    await until(lambda: told.lost > 0)
    assert told.lost == 1


async def test_what_waits_for_certainty_goes_on_with_the_next_renewal() -> None:
    lease = _Told().lease(Terms(lease_seconds=15.0, heartbeat_seconds=5.0))
    waiting = asyncio.create_task(lease.certain())
    lease.renewed(clock() - 13.0)
    lease.reached_broker(clock())
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    await asyncio.to_thread(lease.renewed, clock())
    assert await asyncio.wait_for(waiting, 5)


async def test_the_loss_ends_every_wait_for_a_renewal() -> None:
    lease = _Told().lease()
    waits = [asyncio.create_task(lease.certain()), asyncio.create_task(lease.next_renewal())]
    await asyncio.wait(waits, timeout=0.05)
    await asyncio.to_thread(lease.lose, "the database gave this worker up", given_up=True)
    assert await asyncio.wait_for(asyncio.gather(*waits), 5) == [False, False]
    assert lease.given_up


async def test_the_guardian_is_told_with_each_renewal_and_each_answer_of_the_broker() -> None:
    told = _Told()
    lease = told.lease(Terms(lease_seconds=15.0, heartbeat_seconds=5.0))
    now = clock()
    lease.renewed(now)
    lease.reached_broker(now + 20.0)
    # A lease of 15 s has a margin of 3 s; the guardian takes four fifths of it, the broker's word counts 3 s.
    assert [round(deadline - now, 3) for deadline in told.deadlines if deadline] == [14.4, 25.4]
