"""What goes wrong, as plain values: a kind, a target, an instant, how long. `World` carries them out."""

from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from turnstile.stress.scenario import FaultKind

Kind = Literal[
    "kill executor", "pause executor", "slow executor", "executor without broker",
    "executor without database", "kill worker", "pause worker", "slow worker", "worker without broker",
    "stop worker",
    "broker out", "connections break", "slow confirms", "purge completions", "purge heartbeats",
    "drop completions", "drop heartbeats", "publish", "listener hangs",
    "database out", "database frozen", "sessions terminated", "locked rows", "write", "take over", "failover",
    "database clock steps", "worker clock steps",
    "lose", "delay", "kill executor when", "pause executor when", "kill worker when", "purge when",
    "poison", "forge", "drain by operator", "slow loads",
]  # fmt: skip
"""The last ones are those of directed stories; `interference` carries them out."""

_OF_LEADERS: Final[tuple[Kind, ...]] = (
    "kill executor", "pause executor", "slow executor", "executor without broker",
    "executor without database", "publish", "write", "write", "take over", "sessions terminated",
)  # fmt: skip
_OF_WORKERS: Final[tuple[Kind, ...]] = (
    "kill worker", "pause worker", "slow worker", "worker without broker", "stop worker", "publish",
    "worker clock steps",
)  # fmt: skip
_OF_SERVERS: Final[tuple[Kind, ...]] = (
    "broker out", "connections break", "slow confirms", "purge completions", "purge heartbeats",
    "drop completions", "drop heartbeats", "listener hangs", "database out", "database frozen", "locked rows",
    "database clock steps",
)  # fmt: skip

PUBLISH_OUTCOMES: Final = ("never", "late", "part", "unconfirmed", "slow")
WRITE_OUTCOMES: Final = ("lost", "unanswered", "running", "queued", "slow")

KINDS: Final[dict[str, FaultKind]] = {
    "kill executor": FaultKind.KILL_EXECUTOR,
    "pause executor": FaultKind.KILL_EXECUTOR,
    "slow executor": FaultKind.KILL_EXECUTOR,
    "take over": FaultKind.KILL_EXECUTOR,
    "write": FaultKind.KILL_EXECUTOR,
    "sessions terminated": FaultKind.KILL_EXECUTOR,
    "database out": FaultKind.RESTART_DATABASE,
    "database frozen": FaultKind.RESTART_DATABASE,
    "locked rows": FaultKind.RESTART_DATABASE,
    "database clock steps": FaultKind.RESTART_DATABASE,
    "executor without database": FaultKind.RESTART_DATABASE,
    "pause worker": FaultKind.PAUSE_WORKER,
}
"""How the checker knows them; all others may lose messages, and it excuses idle slots for longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    at: float
    kind: Kind
    target: int = 0
    """Number of the executor or worker; for an executor, -1 is the one that leads."""
    seconds: float = 0.0
    outcome: str = ""
    """For calls that go wrong; of directed faults the kind of message or commit, or what is forged."""
    share: float = 1.0
    """Which part of the messages it strikes."""
    delay: float = 0.0
    """By how many seconds messages are late."""
    calls: int = -1
    """Springs at this call after the instant; -1: at the instant."""
    is_after: bool = False
    """After the call took effect."""


def faults_of(random: Random, executors: int, workers: int, seconds: float, count: int) -> tuple[Fault, ...]:
    """Return the faults of a story."""
    kinds: list[Kind] = list(random.choice((
        _OF_LEADERS, _OF_WORKERS, _OF_SERVERS, (*_OF_LEADERS, *_OF_WORKERS, *_OF_SERVERS),
    )))  # fmt: skip
    # Some kinds only, so that a story has its own character.
    kinds = random.sample(kinds, random.randint(1, len(kinds)))
    found = [_fault(random, random.choice(kinds), executors, workers, seconds) for _ in range(count)]
    if random.random() < 0.05:
        found = [
            *found[: count // 3],
            Fault(at=seconds * random.random(), kind="failover", seconds=random.random()),
        ]
    return tuple(sorted(found, key=lambda each: each.at))


def _fault(random: Random, kind: Kind, executors: int, workers: int, seconds: float) -> Fault:
    at = 0.2 + seconds * random.random()
    # Most calls of an executor are those of the leader.
    leader = -1 if random.random() < 0.7 else random.randrange(executors)
    worker = random.randrange(workers)
    lasting = random.choice((0.05, 0.5, 2.0, 4.0, 8.0)) * random.random()
    calls, is_after = -1, False
    if random.random() < 0.8:
        calls, is_after = random.randrange(12), random.random() < 0.5
    match kind:
        case "kill executor" | "pause executor":
            return Fault(at=at, kind=kind, target=leader, seconds=lasting, calls=calls, is_after=is_after)
        case "kill worker" | "pause worker":
            return Fault(at=at, kind=kind, target=worker, seconds=lasting, calls=calls, is_after=is_after)
        case (
            "slow executor" | "executor without broker" | "executor without database" | "sessions terminated"
        ):
            return Fault(at=at, kind=kind, target=leader, seconds=lasting)
        case "slow worker" | "worker without broker" | "stop worker":
            return Fault(at=at, kind=kind, target=worker, seconds=lasting)
        case "publish":
            target = leader if random.random() < 0.5 else 100 + worker
            return Fault(
                at=at, kind=kind, target=target, outcome=random.choice(PUBLISH_OUTCOMES),
                seconds=random.random() * random.choice((0.1, 1.0, 4.0)),
            )  # fmt: skip
        case "write" | "take over":
            return Fault(
                at=at, kind=kind, target=leader, outcome=random.choice(WRITE_OUTCOMES),
                seconds=random.random() * random.choice((0.01, 0.3, 3.0)),
            )  # fmt: skip
        case "database clock steps" | "worker clock steps":
            return Fault(
                at=at, kind=kind, target=worker, seconds=random.choice((-3600.0, -5.0, -0.5, 0.5, 5.0))
            )
        case _:
            return Fault(at=at, kind=kind, target=worker, seconds=min(lasting, 4.0))
