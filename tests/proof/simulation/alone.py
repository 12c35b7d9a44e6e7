"""A worker alone with a scripted leader that offers several executions of a queue in one session.

The leader does not do that yet (LEADER 6, runs), and the worker must keep order, "at once", recalls and early
cancels already. Messages are lost and come again behind newer ones.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.proof.simulation.broker import Rabbit, WorkerBroker
from tests.proof.simulation.loop import SimulatedLoop
from tests.proof.simulation.processes import Process, Processes, SimulatedClock
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.outcomes import Completed
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    CancelAttempt,
    Heard,
    Heartbeat,
    Hello,
    LeaderBody,
    Offer,
    Offers,
    Recall,
    Report,
    ToSession,
    Welcome,
)
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.core.ports import Ports, RunEnd
from turnstile.worker.core.process import WorkerProcess

ALONE: Final = "worker alone"
_EPOCH: Final = 5
_CONCURRENCY: Final = 5
_TRAVEL_SECONDS: Final = 0.02
"""What was sent so long before has been applied."""
_LOST_SHARE: Final = 0.2


def alone(seed: int) -> list[str]:
    """Run a story of a seed, and return what the worker breaks."""
    return _Alone(Random(f"{ALONE} {seed}")).run()


class _Run:
    """A run that ends by itself, or when it is asked to."""

    def __init__(
        self, place: "_Alone", offer: Offer, seconds: float, ended: Callable[[RunEnd], None]
    ) -> None:
        self._place, self._offer = place, offer
        self._future: Any = place.loop.create_future()
        self._future.add_done_callback(lambda future: ended(future.result()))
        place.loop.after(seconds, self._end)

    def _end(self) -> None:
        if not self._future.done():
            self._place.running[self._offer.action_ref] -= 1
            self._future.set_result(Completed(result_json="null"))

    def ask_to_stop(self, reason: str) -> None:
        self._end()

    def kill(self) -> None:
        self._end()


class _Alone:
    """The world around the worker: its broker, its runner, its identities and its leader."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.loop = SimulatedLoop(Processes())
        self.rabbit = Rabbit(self.loop, random)
        self.rabbit.enqueue = self._from_worker  # type: ignore[method-assign]
        self.process = Process(self.loop, random, "worker")
        self.found: list[str] = []
        self.running: dict[str, int] = {}
        self.started: set[Grant] = set()
        self.over: set[Grant] = set()
        self.offers: dict[Grant, tuple[Offer, float]] = {}
        """All offers, with the instants from which on the worker has them."""
        self.at_once: dict[str, list[tuple[int, float, int]]] = {}
        """Numbers and instants of messages of a queue, and how many they let run at once."""
        self.barriers: dict[str, tuple[Grant, float]] = {}
        self.cancelled: dict[Grant, float] = {}
        self._reported: set[int] = set()
        self._sent = 0
        self._counter = 0

    def run(self) -> list[str]:
        ports = Ports(
            broker=WorkerBroker(self.rabbit, self.process), clock=SimulatedClock(self.process), runner=self,
            identities=self,
        )  # fmt: skip
        config = WorkerConfig(
            name="w", pools=("p",), concurrency=_CONCURRENCY, lease_seconds=6.0, heartbeat_seconds=0.3
        )
        self.process.start(WorkerProcess(ports, config).run())
        for _ in range(10):
            self.loop.at(0.5 + 2 * self.random.random(), self._offer)
        for _ in range(3):
            self.loop.at(0.7 + 2 * self.random.random(), self._recall)
            self.loop.at(0.5 + 2 * self.random.random(), self._cancel)
        self.loop.at(8.0, self.loop.stop_world)
        self.loop.run_world()
        left = [grant for grant in self.offers if grant not in self.over]
        if left:
            self.found.append(f"STUCK {len(left)} offers were not answered, such as {left[0]}")
        self.process.kill()
        self.process.bury()
        self.loop.clear()
        self.loop.close()
        return self.found

    # The leader.

    def _send(self, body: LeaderBody) -> float:
        """Send a message; return from when on the worker has certainly applied it."""
        self._sent += 1
        message, delay = ToSession(epoch=_EPOCH, number=self._sent, body=body), 0.0
        if isinstance(body, Offers) and self.random.random() < _LOST_SHARE:
            delay = 0.1 + 0.6 * self.random.random()
        for session in self.rabbit.sessions.values():
            self.loop.after(delay, session.arrive, message)
        return self.loop.now + delay + _TRAVEL_SECONDS

    def _from_worker(self, name: str, messages: Any) -> None:
        for message in messages:
            match message.body:
                case Hello():
                    self._send(Welcome())
                case Heartbeat(number=number):
                    self._send(Heard(heartbeat=number, committed=len(self._reported)))
                case Report(number=number, body=body):
                    self._reported.add(number)
                    if isinstance(body, AttemptEnded | AttemptReturned):
                        self.over.add(body.grant)
                case _:
                    pass

    def _next_grant(self) -> Grant:
        self._counter += 1
        return Grant(_EPOCH, self._counter)

    def _offer(self) -> None:
        queue, at_once = self.random.choice("ab"), self.random.choice((1, 1, 2, 3))
        offers = tuple(
            Offer(
                execution_id=self.random.randrange(1_000_000), grant=self._next_grant(), attempt=1,
                action_ref=queue, parameters=b"{}", priority=self.random.choice((1, 3, 3)),
            )
            for _ in range(self.random.randint(1, 6))
        )  # fmt: skip
        at = self._send(Offers(queue=queue, at_once=at_once, offers=offers))
        self.at_once.setdefault(queue, []).append((self._sent, at, at_once))
        self.offers.update((offer.grant, (offer, at)) for offer in offers)

    def _recall(self) -> None:
        queue, barrier = self.random.choice("ab"), Grant(_EPOCH, self._counter)
        self.barriers[queue] = barrier, self._send(Recall(queue=queue, barrier=barrier))

    def _cancel(self) -> None:
        """Cancel something that has not started, or whose offer is under way."""
        open_offers = [grant for grant in self.offers if grant not in self.started | self.over]
        if open_offers:
            grant = self.random.choice(open_offers)
            body = CancelAttempt(
                execution_id=self.offers[grant][0].execution_id, grant=grant, reason="a test"
            )
            self.cancelled[grant] = self._send(body)

    # The worker's ports.

    def worker_id(self) -> str:
        return "w"

    def secret(self) -> str:
        return "s"

    def start(self, offer: Offer, ended: Callable[[RunEnd], None]) -> _Run:
        queue, grant, now = offer.action_ref, offer.grant, self.loop.now
        self.running[queue] = self.running.get(queue, 0) + 1
        if grant in self.started:
            self.found.append(f"GRANT {grant} runs twice")
        self.started.add(grant)
        for other, at in self.offers.values():
            is_waiting = (
                at < now and other.grant not in self.started | self.over and other.action_ref == queue
            )
            place = other.priority, other.execution_id
            if (
                is_waiting
                and place < (offer.priority, offer.execution_id)
                and other.grant not in self.cancelled
            ):
                self.found.append(f"ORDER {offer.execution_id} starts before {other.execution_id}")
        self._check_at_once(queue)
        barrier, at = self.barriers.get(queue, (Grant(0, 0), 0.0))
        if grant <= barrier and at < now:
            self.found.append(f"RECALL {grant} starts, up to {barrier} everything was recalled")
        if self.cancelled.get(grant, now) < now:
            self.found.append(f"CANCEL {grant} starts, it was cancelled before")
        return _Run(self, offer, 0.3 * self.random.random(), ended)

    def _check_at_once(self, queue: str) -> None:
        now, limits = self.loop.now, self.at_once[queue]
        newest = max(number for number, at, _ in limits if at < now + _TRAVEL_SECONDS)
        highest = max(limit for number, at, limit in limits if number >= newest or at > now - _TRAVEL_SECONDS)
        if self.running[queue] > highest:
            self.found.append(f"AT ONCE {self.running[queue]} of queue {queue} run, {highest} may")
