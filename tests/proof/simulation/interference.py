"""The world of a directed story: faults that strike one kind of message or commit, and a watcher beside them.

A message is named by the class of its body (`Heard`, `AttemptEnded`, ...), a commit by what the turn contains
(`commit grants`, ...). So the fault that an interleaving needs happens in every story of its kind.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from tests.proof.simulation.broker import COMPLETIONS, HEARTBEATS, REQUESTS, Message
from tests.proof.simulation.faults import Fault
from tests.proof.simulation.processes import Process
from tests.proof.simulation.story import POOL, Story
from tests.proof.simulation.watcher import Watcher
from tests.proof.simulation.world import Outcome, World
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import AttemptEnded, Hello, Leaving, Report, Sender
from turnstile.executor.leader.leadership import Leader
from turnstile.executor.leader.ports import DefinitionCommand, Publication, Request
from turnstile.executor.leader.records import Turn

POISON: Final = b'{"number": 0, "text": "\\u0000"}'
"""Parameters that the database refuses."""
_THIEF: Final = Sender(worker_id="thief", session=1, secret="of a thief")
_COMPARED: Final = 0.3
"""Share of the rests of a leader at which memory is compared with the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What happens to messages of some kinds for a time."""

    until: float
    names: frozenset[str]
    worker: int
    """Number of the worker from or to which they go; -1: all."""
    share: float
    delay: float
    """0: they are lost."""


def world_of(story: Story) -> World:
    """Return the world of a story."""
    return DirectedWorld(story) if story.kind else World(story)


def name_of(body: Any) -> str:
    """Return how faults name a message."""
    return type(body.body if isinstance(body, Report) else body).__name__


class DirectedWorld(World):
    """A world in which faults can strike single kinds of messages and commits."""

    def __init__(self, story: Story) -> None:
        self.strikes: list[Strike] = []
        self.traps: dict[str, deque[Fault]] = {}
        self.kind = story.kind
        self.watcher = Watcher(self)
        self.poisons = 0
        self.draining: dict[str, int] = {}
        """Workers that an operator drains, and the command in the inbox."""
        super().__init__(story)
        rabbit, postgres = self.rabbit, self.postgres
        self._routes, self._enqueues, self._applies = rabbit.route, rabbit.enqueue, postgres.apply
        rabbit.route, rabbit.enqueue, postgres.apply = self._route, self._enqueue, self._apply  # type: ignore[method-assign]
        self.witness.records = self.watcher.starts

    def process(self, name: str) -> Process:
        process = super().process(name)
        process.at_death.append(lambda: self.watcher.died(process))
        return process

    def run(self) -> Outcome:
        outcome = super().run()
        self.watcher.at_the_end(outcome)
        return outcome

    def compare(self, leader: Leader) -> None:
        if self.random.random() < _COMPARED:
            self._compare(leader)

    @property
    def is_over(self) -> bool:
        return self.loop._is_stopped

    # What passes.

    def _route(self, publications: Sequence[Publication]) -> list[bool]:
        routed = []
        for each in publications:
            body: Any = each.body
            if not each.to.startswith("session "):
                if each.to in self.rabbit.queues:
                    self.watcher.probes(each.to, body)
                routed += self._routes([each])
                continue
            name, worker_id = type(body.body).__name__, each.to.split(" ")[1]
            self.watcher.sends(each.to, body)
            strike = self._strike_of(name, worker_id)
            if strike is None or strike.delay:
                self.watcher.answers(worker_id, body.body)
            if strike is None:
                routed += self._routes([each])
            else:
                routed.append(each.to in self.rabbit.sessions)
                if strike.delay:
                    self.loop.after(strike.delay, self._routes, [each])
            self.happens(f"to worker {name}", worker_id)
        return routed

    def _enqueue(self, name: str, messages: Sequence[Message]) -> None:
        if name == REQUESTS:
            self._enqueues(name, messages)
            return
        for each in messages:
            worker_id = getattr(getattr(each.body, "sender", None), "worker_id", "")
            strike = self._strike_of(name_of(each.body), worker_id)
            if strike is None:
                self.watcher.arrives(each.body)
                self._enqueues(name, [each])
            elif strike.delay:
                self.loop.after(strike.delay, self._enqueue, name, [each])
            self.happens(f"from worker {name_of(each.body)}", worker_id)

    def _strike_of(self, name: str, worker_id: str) -> Strike | None:
        for each in self.strikes:
            if name in each.names and each.worker in (-1, self.worker_ids.get(worker_id, -1)):
                is_struck = self.loop.now < each.until and self.random.random() < each.share
                return each if is_struck else None
        return None

    def _apply(self, turn: Turn) -> None:
        self._applies(turn)
        self.watcher.commits(turn)
        kinds = {
            "requests": turn.admitted, "grants": turn.granted, "ends": turn.ended, "workers": turn.workers,
            "reclaims": [each for each in turn.attempts if each.outcome == "reclaimed"],
            "cancels": [each for each in turn.live if each.cancel_reason is not None],
            "delays": [each for each in turn.live if each.status is Status.DELAYED],
            "early cancels": turn.early_cancels,
        }  # fmt: skip
        for kind, rows in kinds.items():
            if rows:
                self.happens(f"commit {kind}", "")

    # Faults.

    def happens(self, what: str, worker_id: str) -> None:
        """Spring the trap that waits for this."""
        waiting = self.traps.get(what)
        if not waiting:
            return
        fault = waiting[0]
        if fault.kind == "kill worker when":
            number = self.worker_ids.get(worker_id, -1)
            if number < 0 or fault.target not in (-1, number):
                return
            host = self.workers[number]
            waiting.popleft()
            self._strike(
                host, host.process, Fault(at=self.loop.now, kind="kill worker", seconds=fault.seconds)
            )
        elif fault.kind == "purge when":
            waiting.popleft()
            self.loop.after(fault.delay, self._purge)
        else:
            waiting.popleft()
            executor = self._leading()
            kind: Any = fault.kind.removesuffix(" when")
            self._strike(
                executor, executor.process, Fault(at=self.loop.now, kind=kind, seconds=fault.seconds)
            )

    def _purge(self) -> None:
        self.rabbit.purge(COMPLETIONS)

    def _inject(self, fault: Fault) -> None:
        loop, until = self.loop, self.loop.now + fault.seconds
        match fault.kind:
            case "lose" | "delay":
                names = frozenset(fault.outcome.split())
                strike = Strike(
                    until=until, names=names, worker=fault.target, share=fault.share, delay=fault.delay
                )
                self.strikes = [each for each in self.strikes if each.until > loop.now] + [strike]
            case "kill executor when" | "pause executor when" | "kill worker when" | "purge when":
                self.traps.setdefault(fault.outcome, deque()).append(fault)
                until = loop.now
            case "poison":
                self._send_poison()
            case "forge":
                self._forge(fault.outcome)
            case "drain by operator":
                self._drain(fault.target, is_draining=True)
                loop.at(until, self._drain, fault.target, False)
            case "slow loads":
                self.postgres.load_seconds = fault.delay
                loop.at(until, setattr, self.postgres, "load_seconds", 0.005)
            case _:
                super()._inject(fault)
                return
        self.faults += 1
        self._note(fault, None, until)

    def _send_poison(self) -> None:
        self.poisons += 1
        request = Request(
            action_ref=self.story.actions[0].ref, parameters=POISON, request_hash=UUID(int=1 << 90)
        )
        self.rabbit.enqueue(REQUESTS, [Message(request, self.rabbit.new_key())])

    def _forge(self, what: str) -> None:
        """Send what a stolen account could: a message in the name of a worker, or about its attempt."""
        hello = Hello(
            sender=_THIEF, name="thief", pools=(POOL,), actions=None, concurrency=1, lease_seconds=3600.0,
            epoch_seen=0, is_taking=False,
        )  # fmt: skip
        self.rabbit.enqueue(HEARTBEATS, [Message(hello, self.rabbit.new_key())])
        for execution_id, (grant, worker_id) in list(self.watcher.grants.items())[-8:]:
            row = self.postgres.tables.workers.get(worker_id)
            if row is None or execution_id not in self.postgres.tables.open_ids:
                continue
            stolen = Sender(worker_id=worker_id, session=row.session, secret="a wrong one")
            if what == "hello":
                forged = Hello(
                    sender=replace(stolen, session=row.session + 1), name="forged", pools=(POOL,), actions=(),
                    concurrency=1,
                    lease_seconds=row.lease_seconds, epoch_seen=0, is_taking=False,
                )  # fmt: skip
                self._enqueues(HEARTBEATS, [Message(forged, self.rabbit.new_key())])
                continue
            end = AttemptEnded(
                execution_id=execution_id, grant=grant, status=Status.COMPLETED, result=b"null"
            )
            report = Report(
                sender=_THIEF if what == "end of another" else stolen, number=1, kept_from=1, epoch_seen=0,
                body=Leaving() if what == "leaving" else end,
            )  # fmt: skip
            self._enqueues(COMPLETIONS, [Message(report, self.rabbit.new_key())])

    def _drain(self, number: int, is_draining: bool) -> None:
        worker_id = self.workers[number % len(self.workers)].id
        if worker_id is not None and self.postgres.is_up:
            self.ids += 1
            command = DefinitionCommand(
                kind="worker", name=worker_id, definition={"is_draining": is_draining}
            )
            self.postgres.put_in_inbox(UUID(int=(1 << 103) | self.ids), command)
            self.draining.clear()
            if is_draining:
                self.draining[worker_id] = self.postgres.inbox_ids
