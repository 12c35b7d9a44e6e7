"""A worker alone with a scripted leader: offers of any number at once, recalls, cancels, in any order.

Messages are lost and come again behind newer ones. The book of workers says what the worker may start.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.proof.simulation.at_workers import AtWorkers
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
_AGAIN_SECONDS: Final = 0.1
"""What was sent so long before, and has not arrived, is sent again."""
_LOST_SHARE: Final = 0.2


def alone(seed: int) -> list[str]:
    """Run a story of a seed, and return what the worker breaks."""
    return _Alone(Random(f"{ALONE} {seed}")).run()


class _Run:
    """A run that ends by itself, or when it is asked to."""

    def __init__(self, loop: SimulatedLoop, seconds: float, ended: Callable[[RunEnd], None]) -> None:
        self._future: Any = loop.create_future()
        self._future.add_done_callback(lambda future: ended(future.result()))
        loop.after(seconds, self._end)

    def _end(self) -> None:
        if not self._future.done():
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
        self.book = AtWorkers(lambda: self.loop.now, self.found.append)
        self.rabbit.on_taken = lambda _, messages: self.book.takes("w", 1, messages)
        self.over: set[Grant] = set()
        self.started: set[Grant] = set()
        self.offers: dict[Grant, Offer] = {}
        self._unreceived: dict[int, tuple[ToSession, float]] = {}
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

    def _send(self, body: LeaderBody) -> None:
        self._sent += 1
        message, delay = ToSession(epoch=_EPOCH, number=self._sent, body=body), 0.0
        self._unreceived[self._sent] = message, self.loop.now
        if isinstance(body, Offers) and self.random.random() < _LOST_SHARE:
            delay = 0.1 + 0.6 * self.random.random()
        self._arrives(message, delay)

    def _arrives(self, message: ToSession, delay: float = 0.0) -> None:
        for session in self.rabbit.sessions.values():
            self.loop.after(delay, session.arrive, message)

    def _send_again(self, received: int) -> None:
        """Send everything above a number again, in order, except what may still arrive."""
        self._unreceived = {n: each for n, each in self._unreceived.items() if n > received}
        for message, at in self._unreceived.values():
            if self.loop.now > at + _AGAIN_SECONDS:
                self._arrives(message)

    def _from_worker(self, name: str, messages: Any) -> None:
        for message in messages:
            match message.body:
                case Hello():
                    self._send(Welcome())
                case Heartbeat(number=number, received=received):
                    self._send_again(received)
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
        self._send(Offers(queue=queue, at_once=at_once, offers=offers))
        self.offers.update((offer.grant, offer) for offer in offers)

    def _recall(self) -> None:
        self._send(Recall(queue=self.random.choice("ab"), barrier=Grant(_EPOCH, self._counter)))

    def _cancel(self) -> None:
        """Cancel something that has not started, or whose offer is under way."""
        open_offers = [grant for grant in self.offers if grant not in self.started | self.over]
        if open_offers:
            grant = self.random.choice(open_offers)
            execution_id = self.offers[grant].execution_id
            self._send(CancelAttempt(execution_id=execution_id, grant=grant, reason="a test"))

    # The worker's ports.

    def worker_id(self) -> str:
        return "w"

    def secret(self) -> str:
        return "s"

    def start(self, offer: Offer, ended: Callable[[RunEnd], None]) -> _Run:
        self.started.add(offer.grant)
        noted = self.book.starts("w", offer)

        def over(end: RunEnd) -> None:
            noted(True)
            ended(end)

        return _Run(self.loop, 0.3 * self.random.random(), over)
