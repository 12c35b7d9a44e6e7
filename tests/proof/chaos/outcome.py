"""One seed from nothing to a verdict: stand up, run, judge, clear away.

In: a seed and the shape of a run. Out: an `Outcome`. Its folder, with the logs of all processes and what was
recorded, stays only where something is wrong. Next: `report`.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.proof.chaos.blame import given_up_without_cause
from tests.proof.chaos.findings import findings, left_behind
from tests.proof.chaos.folder import RECORDING, run_folder
from tests.proof.chaos.ground import Ground, standing_ground
from tests.proof.chaos.recorder import read, worker_names
from tests.proof.chaos.run import Course, take_course
from tests.proof.chaos.schedule import Shape
from tests.proof.chaos.windows import overlap_tolerances, tolerances
from tests.proof.history.copies import runs_end_with_their_attempts
from tests.proof.history.figures import Figures, figures
from tests.proof.history.verdict import violations

_AUDIT_SECONDS: Final = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one seed."""

    seed: int
    shape: Shape
    course: Course
    figures: Figures
    violations: list[str]
    folder: Path
    """Gone, unless there are violations, or it was to be kept."""

    @property
    def replay(self) -> str:
        """The command that runs the same load and schedule again."""
        return (
            f"make chaos CHAOS_MODE=faults CHAOS_SEED={self.seed} CHAOS_SEEDS=1 "
            f"CHAOS_SECONDS={self.shape.seconds:g}"
        )


async def run_seed(seed: int, shape: Shape, *, patience: float, keep: bool = False) -> Outcome:
    """Run one seed; raises what the harness or a server could not do. `keep`: the folder stays anyway."""
    with run_folder(f"chaos-seed-{seed}", keep=keep) as folder:
        async with standing_ground(folder.path) as ground:
            course = await take_course(ground, seed, shape)
            outcome = await _judged(ground, course, seed, shape, patience)
        outcome.violations.extend(left_behind(folder.path))
        folder.violations = outcome.violations
        return outcome


async def _judged(ground: Ground, course: Course, seed: int, shape: Shape, patience: float) -> Outcome:
    recording = await read(ground.database_url, ground.amqp_url, ground.folder, course.log)
    (ground.folder / RECORDING).write_bytes(pickle.dumps(recording))
    names = await worker_names(ground.database_url)
    promises_broken = [
        *violations(recording, tolerances=tolerances(course, patience=patience)),
        *runs_end_with_their_attempts(recording, overlap_tolerances(course, patience=patience)),
    ]
    return Outcome(
        seed=seed,
        shape=shape,
        course=course,
        figures=figures(recording),
        violations=[
            *findings(ground, course, patience=patience),
            *given_up_without_cause(recording, course, names),
            *await audit(ground),
            *dict.fromkeys(map(str, promises_broken)),
        ],
        folder=ground.folder,
    )


async def audit(ground: Ground) -> list[str]:
    """Let the system recount itself; a clean audit has nothing to say."""
    answer = await ground.http.get(f"{ground.executors[0].url}/api/v1/audit", timeout=_AUDIT_SECONDS)
    if answer.status_code != httpx.codes.OK:
        return [f"audit: {answer.status_code} {answer.text[:300]}"]
    checks = answer.json()["checks"]
    return [f"audit: {c['name']}: {c['says']}: {c['examples']}" for c in checks if c["faults"]]
