"""The gates of a run: their definitions, how these change, and what the history says about P11 to P14.

In: a seed, a duration and the names of the actions. Out: the changes that define them before the load, those
during it, and a sentence for each violation, from the gates that the installation has stored.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from tests.proof.history.recording import moment
from tests.proof.history.stored_gates import read_gates
from tests.support.history import session_of
from turnstile.stress.check.passages import Broken, check_passages

Fields = Mapping[str, Any]
_READING_SECONDS: Final = 60.0
_COMMIT_NS: Final = 100_000_000
"""From the last trigger of a transaction to its commit, on a busy machine."""
_LONGEST_CHANGE: Final = "SELECT max(committed_at - changed_at) FROM history.committed_change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change an action, a resource, a pool or the settings of a key."""

    at_seconds: float
    path: str
    fields: Fields
    method: Literal["PATCH", "PUT"] = "PATCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of a load."""

    resources: Mapping[str, Fields]
    actions: Mapping[str, Fields]
    keys: Mapping[str, Fields]
    """By `REF/keys/KEY`."""
    changes: Mapping[str, tuple[Fields, ...]]
    """By path, what a change may set."""
    pools: Mapping[str, Fields] = field(default_factory=dict)

    def defined(self) -> list[Change]:
        """Return the changes that define them; they undo all others."""
        return [
            *(
                Change(at_seconds=0.0, path=f"resources/{name}", fields=fields, method="PUT")
                for name, fields in self.resources.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"actions/{ref}", fields=fields)
                for ref, fields in self.actions.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"actions/{path}", fields=fields, method="PUT")
                for path, fields in self.keys.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"pools/{name}", fields=fields, method="PUT")
                for name, fields in self.pools.items()
            ),
        ]

    def changed(self, rng: random.Random, seconds: float) -> Iterator[Change]:
        """Yield changes for this long, in the order of their time: of each path before any comes twice.

        A pause is soon over.
        """
        now = rng.uniform(2.0, 6.0)
        paths: list[str] = []
        while self.changes and now < seconds:
            paths = paths or rng.sample(sorted(self.changes), len(self.changes))
            path = paths.pop()
            fields = rng.choice(self.changes[path])
            method: Literal["PATCH", "PUT"] = "PUT" if "/keys/" in path else "PATCH"
            yield Change(at_seconds=round(now, 2), path=path, fields=fields, method=method)
            if fields.get("paused"):
                now += rng.uniform(0.5, 2.5)
                yield Change(at_seconds=round(now, 2), path=path, fields={"paused": False})
            # Fair shares and the order are compared between changes.
            now += rng.uniform(1.0, 12.0)


def numbers_of_gates(gates: Gates) -> dict[str, int | None]:
    """Return the limit of each action and the capacity of each resource, as `drain` compares them."""
    return {
        **{f"resource {name}": fields["capacity"] for name, fields in gates.resources.items()},
        **{ref: fields["max_concurrent"] for ref, fields in gates.actions.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesChecked:
    """How much of the history the rules of gates saw, and what breaks them."""

    executions: int
    settling_seconds: float
    """How long a change may have taken."""
    checked: Mapping[str, int]
    violations: list[str]

    @property
    def line(self) -> str:
        """Return the line of a report with the numbers of checks."""
        counts = ", ".join(f"{rule} {count}" for rule, count in sorted(self.checked.items()))
        return (
            f"  gates              {self.executions} executions; checked {counts}; "
            f"changes took {self.settling_seconds:.2f} s at most"
        )


async def check_gates(database_url: str) -> GatesChecked:
    """Replay the gates of all executions; the triggers of `event_log` say how long changes took."""
    async with session_of(database_url) as connection:
        async with asyncio.timeout(_READING_SECONDS):
            longest = await connection.fetchval(_LONGEST_CHANGE) or timedelta()
            settling_ns = longest // timedelta(microseconds=1) * 1000 + _COMMIT_NS
            history = await read_gates(connection, settling_ns=settling_ns)
    verdict = await asyncio.to_thread(check_passages, history)
    return GatesChecked(
        executions=sum(bool(passer.stays) for passer in history.passers),
        settling_seconds=settling_ns / 1e9,
        checked=Counter({str(rule): count for rule, count in verdict.checked.items()}),
        violations=[_sentence(broken) for broken in verdict.broken],
    )


def _sentence(broken: Broken) -> str:
    at: datetime = moment(broken.at)
    execution = "" if broken.execution_id is None else f", execution {broken.execution_id}"
    return f"{broken.rule}: {broken.what} ({broken.gate}{execution}, at {at:%H:%M:%S.%f})"
