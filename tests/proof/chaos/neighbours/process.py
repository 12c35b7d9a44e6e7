"""Runs the neighbours in a process of their own: `python -m tests.proof.chaos.neighbours.process <plan>
<events>`.

In: a file with the pickled `Plan`. Out: a file with one pickled `Disturbed` for each ended disturbance.
A process of their own keeps them from slowing down the harness, which sends the steady load and measures.
"""

import asyncio
import pickle
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tests.proof.chaos.neighbours.kinds import DISTURB
from tests.proof.chaos.neighbours.neighbour import Disturbed, Neighbour, Plan
from tests.proof.chaos.neighbours.schedule import Disturbance


def read_disturbed(file: Path) -> list[Disturbed]:
    """Return what happened, in the order of the beginnings."""
    found: list[Disturbed] = []
    with file.open("rb") as lines, suppress(EOFError):
        while True:
            found.append(pickle.load(lines))
    return sorted(found, key=lambda each: each.began_at)


async def _run_all(plan: Plan, events: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        for disturbance in plan.disturbances:
            tasks.create_task(_run_one(plan, disturbance, events), name=f"disturbance-{disturbance.number}")


async def _run_one(plan: Plan, disturbance: Disturbance, events: Path) -> None:
    passed_seconds = (datetime.now(UTC) - plan.began_at).total_seconds()
    await asyncio.sleep(disturbance.at_seconds - passed_seconds)
    neighbour = Neighbour(plan.access, disturbance)
    began_at, failed = datetime.now(UTC), None
    disturbing = asyncio.ensure_future(DISTURB[disturbance.kind](neighbour))
    await asyncio.sleep(disturbance.lasting_seconds)
    disturbing.cancel()
    try:
        with suppress(asyncio.CancelledError):
            await disturbing
    except Exception as error:  # noqa: BLE001  the report names the failure, and the others continue
        failed = f"{type(error).__name__}: {error}"
    disturbed = Disturbed(
        disturbance=disturbance,
        began_at=began_at,
        ended_at=datetime.now(UTC),
        did=neighbour.did,
        failed=failed,
    )
    with events.open("ab") as file:
        file.write(pickle.dumps(disturbed))


if __name__ == "__main__":
    asyncio.run(_run_all(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])))
