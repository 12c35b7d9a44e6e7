"""What the harness itself knows to be wrong, before the history is read.

In: the course of a run and the ground it was run on. Out: one sentence for each thing that no fault excuses.
Next: `report` prints them beside the violations of `tests.proof.history`.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.proof.chaos.ground import Ground
from tests.proof.chaos.record import RECORD, RECORD_VARIABLE
from tests.proof.chaos.run import DRAIN_BOUND_SECONDS, Course

FENCED: Final = 70
"""The exit code of a worker that ends itself because nothing else could stop what it runs."""


def findings(ground: Ground, course: Course, *, patience: float) -> Iterator[str]:
    """Yield what was refused, not answered, not done in time, or not asked for."""
    for refused in course.log.refused:
        yield f"an answer that no fault excuses: {refused}"
    for sent in course.log.sent.values():
        if sent.confirmed_at is None:
            yield f"submission {sent.submit.number} was never confirmed"
    if course.left:
        left = ", ".join(f"{count} {name}" for name, count in course.left.items())
        yield f"not drained after {course.drained_in_seconds:.0f} s: {left}"
    elif course.drained_in_seconds > patience * DRAIN_BOUND_SECONDS:
        yield f"drained only after {course.drained_in_seconds:.0f} s, {DRAIN_BOUND_SECONDS:.0f} s are allowed"
    for service in ground.services.values():
        for collapse in service.collapses:
            if not (collapse.exit_code == FENCED and collapse.name.startswith("worker")):
                yield (
                    f"{collapse.name} ended by itself with {collapse.exit_code} "
                    f"at {collapse.at:%H:%M:%S}:\n{collapse.last_lines}"
                )


def left_behind(folder: Path) -> Iterator[str]:
    """Yield what still runs of a run whose ground is gone, and kill it."""
    mark = os.fsencode(f"{RECORD_VARIABLE}={folder / RECORD}")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                os.kill(int(process.name), signal.SIGKILL)
                yield f"process {process.name} was left behind: {command}"
