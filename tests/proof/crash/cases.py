"""What is tried: each crash point, the watchdog's once for each of its sweeps.

Out: `Case`s, and the groups in which they can be tried together.
"""

from dataclasses import dataclass
from typing import Final

from tests.proof.crash.sweeps import SWEEPS
from turnstile.common.crash_points import VARIABLE, CrashPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Who dies where, and when it is there for which time."""

    point: CrashPoint
    times: int
    sweep: str | None = None
    """The sweep that is given something to do."""

    @property
    def name(self) -> str:
        """The case in a word."""
        return f"{self.point}{f'.{self.sweep}' if self.sweep else ''}:{self.times}"

    @property
    def armed(self) -> dict[str, str]:
        """The environment of the process that is to die."""
        return {VARIABLE: f"{self.point}:{self.times}"}


def cases(times: int) -> list[Case]:
    """Return a case for each point, those of executors first, and for each sweep of the watchdog."""
    return [
        Case(point=point, times=times, sweep=sweep)
        for point in CrashPoint
        for sweep in (SWEEPS if point is CrashPoint.SWEPT else (None,))
    ]


def groups(times: int) -> dict[str, list[Case]]:
    """Return the same cases, together where one may die while it heals what another left.

    Not with sweeps: what requests leave behind would be swept first.
    """
    return {
        kind: [case for case in cases(times) if case.point in points]
        for kind, points in (
            ("requests and completions", _EXECUTOR - {CrashPoint.SWEPT}),
            ("sweeps", {CrashPoint.SWEPT}),
            ("attempts", set(CrashPoint) - _EXECUTOR - {CrashPoint.ATTEMPT_HANDED_BACK}),
            ("drains", {CrashPoint.ATTEMPT_HANDED_BACK}),
        )
    }


_EXECUTOR: Final = {point for point in CrashPoint if point.startswith("executor.")}
