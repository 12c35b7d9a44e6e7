"""The worker's lease: heartbeats, the answers to them, probes, and what all that permits now (P6).

`Lease` is the decision: plain calls and instants of one clock, so any thread may use it. `LeaseKeeper`
sends: the product runs it in a thread of its own, because a blocked event loop must not cost the lease. The
lease counts from the *sending* of the last *answered* heartbeat; `worker.fence` has the rule. While answers
are late, two things show that a run may continue: a probe that came back through the session's queue, as a
cancel would, and the word of an executor, over HTTP, that nothing is reclaimed for some time.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from turnstile.common.domain.errors import Unavailable
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.ports import Ports
from turnstile.worker.core.session import Session
from turnstile.worker.fence import Evidence, Standing, Terms

_RETRY_SECONDS_MAX: Final = 0.5
_POLL_SECONDS: Final = 0.25
"""Longest sleep: the lease's clock also runs while this process is stopped, the loop's clock may not."""
_SHORTEST_SECONDS: Final = 0.001
_PROBES_PER_PROOF: Final = 3
_UNANSWERED_MAX: Final = 1000


class Lease:
    """One worker id's lease. Its end is final, whatever evidence comes later."""

    def __init__(self, terms: Terms, kill_at: Callable[[float], None] = lambda _: None) -> None:
        """`kill_at` is called with each new instant at which all runs must be killed from outside."""
        self.terms = terms
        self._kill_at = kill_at
        self.is_over = False
        self._renewed_at: float | None = None
        self._reached_at: float | None = None
        self._spared_until = -math.inf
        self._certain_until = -math.inf
        self._number = 0
        self._sent_at: dict[int, float] = {}

    @property
    def evidence(self) -> Evidence:
        """What is known at this moment."""
        return Evidence(renewed_at=self._renewed_at, reached_at=self._reached_at)

    def sending(self, now: float) -> int:
        """Note that a heartbeat is about to be sent; return its number."""
        self._number += 1
        self._sent_at[self._number] = now
        if len(self._sent_at) > _UNANSWERED_MAX:
            self._sent_at.pop(self._number - _UNANSWERED_MAX, None)
        return self._number

    def answered(self, number: int) -> None:
        """Note that the leader answered a heartbeat. A late answer to an earlier one changes nothing."""
        if number in self._sent_at:
            self._renewed_at = self._sent_at[number]
            self._certain_until = self.terms.certain_until(self.evidence)
            for each in tuple(self._sent_at):
                if each <= number:
                    self._sent_at.pop(each, None)
            self._kill_at(self.killed_from_outside_at())

    def reached(self, probed_at: float) -> None:
        """Note that a probe, sent at this instant, has come back."""
        self._reached_at = probed_at
        self._kill_at(self.killed_from_outside_at())

    def spared(self, until: float) -> None:
        """Note that nothing is reclaimed before this instant."""
        self._spared_until = max(self._spared_until, until - self.terms.margin_seconds)
        self._kill_at(self.killed_from_outside_at())

    def lose(self) -> None:
        """Note that the leader ended it."""
        self.is_over = True

    def standing(self, now: float) -> Standing:
        """Return what may be done at `now`. The first call that finds the lease over makes that final."""
        if self.is_over:
            return Standing.OVER
        # Asked several times per attempt: between two answers this is one comparison.
        if now < self._certain_until:
            return Standing.CERTAIN
        standing = self.terms.standing(self.evidence, now=now)
        if standing is Standing.OVER:
            if now < self._spared_until:
                return Standing.IN_DOUBT
            self.is_over = True
        return standing

    def ends_at(self) -> float:
        """Return when it is over, unless there is new evidence before."""
        return max(self.terms.may_run_until(self.evidence), self._spared_until)

    def killed_from_outside_at(self) -> float:
        """Return when what this process did not kill must be killed: it may be stopped itself."""
        terms, evidence = self.terms, self.evidence
        spare_seconds = terms.killed_from_outside_at(evidence) - terms.may_run_until(evidence)
        return self.ends_at() + spare_seconds

    def is_late(self, now: float) -> bool:
        """Return whether a heartbeat has waited for its answer for more than a third of the lease."""
        oldest = next(iter(tuple(self._sent_at.values())), now)
        return now - oldest > self.terms.lease_seconds / 3


class LeaseKeeper:
    """Sends the heartbeats and probes of one worker, and watches its lease."""

    def __init__(self, ports: Ports, config: WorkerConfig, lease: Lease, session: Session) -> None:
        self._ports = ports
        self._clock = ports.clock
        self._config = config
        self._lease = lease
        self._session = session
        self._soon = asyncio.Event()
        self._hello_at = -math.inf

    def hasten(self) -> None:
        """Send the next heartbeat now: the leader waits for what it says."""
        self._soon.set()

    async def send_heartbeats(self) -> None:
        """Say hello until the session is welcome, and send heartbeats from then on, until cancelled."""
        while True:
            self._soon.clear()
            pause_seconds = self._config.heartbeat_seconds
            try:
                await self._send_one()
            except Unavailable:
                pause_seconds = min(_RETRY_SECONDS_MAX, pause_seconds / 2)
            shortest = self._config.heartbeat_seconds / 20
            await self._clock.sleep(shortest)
            await self._clock.wait(self._soon, pause_seconds - shortest)

    async def _send_one(self) -> None:
        session, broker = self._session, self._ports.broker
        if session.queue is None:
            return
        now = self._clock.monotonic()
        # A new leader may have lost the session's row in a failover: a hello now and then finds out.
        is_late = self._lease.is_late(now) and now - self._hello_at > self._lease.terms.lease_seconds / 3
        if not session.is_welcome or is_late:
            self._hello_at = now
            await broker.send_heartbeat(session.hello(self._config))
        if session.is_welcome:
            await broker.send_heartbeat(session.heartbeat(self._lease.sending(self._clock.monotonic())))

    async def probe(self) -> None:
        """While heartbeats are not answered, find out whether a cancel would arrive, until cancelled."""
        terms, clock = self._lease.terms, self._clock
        pause_seconds = terms.proof_seconds / _PROBES_PER_PROOF
        while True:
            spare_seconds = terms.probes_broker_from(self._lease.evidence) - clock.monotonic()
            if spare_seconds > 0:
                await clock.sleep(min(spare_seconds, max(pause_seconds, _POLL_SECONDS)))
                continue
            began_at = clock.monotonic()
            if not await self._reaches():
                await self._ask_executors()
            await clock.sleep(max(began_at + pause_seconds - clock.monotonic(), pause_seconds / 10))

    async def _reaches(self) -> bool:
        """Return whether a probe came back through a session that every later leader knows.

        A cancel is not sent to a session that no leader has welcomed.
        """
        queue, probed_at = self._session.queue, self._clock.monotonic()
        if queue is None or not self._session.is_welcome:
            return False
        try:
            await queue.probe()
        except Unavailable:
            return False
        self._lease.reached(probed_at)
        return True

    async def _ask_executors(self) -> None:
        executors, asked_at = self._ports.executors, self._clock.monotonic()
        if executors is None:
            return
        try:
            seconds = await executors.no_reclaim_seconds(self._session.worker_id)
        except Unavailable:
            return
        if seconds > 0:
            self._lease.spared(asked_at + seconds)

    async def watch(self, on_doubt: Callable[[], None]) -> None:
        """Return once the lease is over; call `on_doubt` whenever it begins to be in doubt."""
        lease, before = self._lease, Standing.IN_DOUBT
        while (standing := lease.standing(self._clock.monotonic())) is not Standing.OVER:
            if standing is Standing.IN_DOUBT and before is Standing.CERTAIN:
                on_doubt()
            before = standing
            left_seconds = lease.ends_at() - self._clock.monotonic()
            await self._clock.sleep(min(max(left_seconds, _SHORTEST_SECONDS), _POLL_SECONDS))
