"""The neighbours in a process of their own: `python -m tests.proof.chaos.neighbours.process <plan> <events>`.

In: a file with the seed, the shape of the run, its beginning and the ways in. Out: a file with one line for
each disturbance that is over: from when to when, what it came to, what went wrong. So nothing of theirs slows
down the harness, which sends the steady load and measures. Next: `read_disturbed` reads the lines.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.proof.chaos.neighbours.broker import (
    BadMessages,
    PoisonReplyAddress,
    RefusingDeadLetters,
    RefusingListener,
    RefusingReplyQueue,
    UndeclarablePool,
    UnknownCancels,
    UnknownEnds,
)
from tests.proof.chaos.neighbours.database import KilledSessions, LockedRow
from tests.proof.chaos.neighbours.flood import FullLine, HugeRequests, ManyKeys, StuckReceivers
from tests.proof.chaos.neighbours.neighbour import Access, Neighbour
from tests.proof.chaos.neighbours.schedule import Disturbance, Kind, Shape, plan_disturbances

_NEIGHBOURS: Final[Mapping[Kind, type[Neighbour]]] = {
    Kind.REFUSING_LISTENER: RefusingListener,
    Kind.REFUSING_REPLY_QUEUE: RefusingReplyQueue,
    Kind.POISON_REPLY_ADDRESS: PoisonReplyAddress,
    Kind.BAD_MESSAGES: BadMessages,
    Kind.HUGE_REQUESTS: HugeRequests,
    Kind.STUCK_RECEIVERS: StuckReceivers,
    Kind.LOCKED_ROW: LockedRow,
    Kind.UNDECLARABLE_POOL: UndeclarablePool,
    Kind.UNKNOWN_CANCELS: UnknownCancels,
    Kind.UNKNOWN_ENDS: UnknownEnds,
    Kind.KILLED_SESSIONS: KilledSessions,
    Kind.REFUSING_DEAD_LETTERS: RefusingDeadLetters,
    Kind.FULL_LINE: FullLine,
    Kind.MANY_KEYS: ManyKeys,
}
assert set(_NEIGHBOURS) == set(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the process is told."""

    shape: Shape
    began_at: datetime
    access: Access

    @property
    def disturbances(self) -> Sequence[Disturbance]:
        """The same in every process."""
        return plan_disturbances(self.access.seed, self.shape)

    def write(self, file: Path) -> None:
        """Write it down for the process."""
        file.write_text(
            json.dumps(
                {
                    "shape": asdict(self.shape),
                    "began_at": self.began_at.isoformat(),
                    "access": asdict(self.access),
                }
            )
        )

    @classmethod
    def read(cls, file: Path) -> "Plan":
        """Read what `write` has written."""
        told = json.loads(file.read_text())
        shape = told["shape"] | {
            "lasting_seconds": tuple(told["shape"]["lasting_seconds"]),
            "quiet_seconds": tuple(told["shape"]["quiet_seconds"]),
            "kinds": tuple(map(Kind, told["shape"]["kinds"])),
        }
        return cls(
            shape=Shape(**shape),
            began_at=datetime.fromisoformat(told["began_at"]),
            access=Access(**told["access"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A disturbance that happened."""

    disturbance: Disturbance
    began_at: datetime
    ended_at: datetime
    did: Mapping[str, int]
    failed: str | None
    """What the neighbour itself could not do."""


def read_disturbed(plan: Plan, file: Path) -> list[Disturbed]:
    """Return what happened, in the order of its beginning."""
    planned = {each.number: each for each in plan.disturbances}
    lines: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(
        (
            Disturbed(
                disturbance=planned[line["number"]],
                began_at=datetime.fromisoformat(line["began_at"]),
                ended_at=datetime.fromisoformat(line["ended_at"]),
                did=line["did"],
                failed=line["failed"],
            )
            for line in lines
        ),
        key=lambda each: each.began_at,
    )


async def _carry_out(plan: Plan, events: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        for disturbance in plan.disturbances:
            tasks.create_task(_one(plan, disturbance, events), name=f"disturbance-{disturbance.number}")


async def _one(plan: Plan, disturbance: Disturbance, events: Path) -> None:
    passed_seconds = (datetime.now(UTC) - plan.began_at).total_seconds()
    await asyncio.sleep(disturbance.at_seconds - passed_seconds)
    neighbour = _NEIGHBOURS[disturbance.kind](plan.access, disturbance)
    began_at, failed = datetime.now(UTC), None
    try:
        await neighbour.start()
        await asyncio.sleep(disturbance.lasting_seconds)
        await neighbour.stop()
    except Exception as error:  # noqa: BLE001  whatever it is, the report names it and the others go on
        failed = f"{type(error).__name__}: {error}"
    line = {
        "number": disturbance.number,
        "began_at": began_at.isoformat(),
        "ended_at": datetime.now(UTC).isoformat(),
        "did": neighbour.did,
        "failed": failed,
    }
    with events.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(_carry_out(Plan.read(Path(sys.argv[1])), Path(sys.argv[2])))
