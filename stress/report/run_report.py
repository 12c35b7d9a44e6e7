"""What a whole run comes to: each stage with its verdict and figures, and where all of it was measured.

In: what `drive` recorded, `check` judged and `figures` measured. Out: one value for everything that shows a
run. Next: `summary`, `document`, `page`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from turnstile.stress.check.verdict import Finding, Verdict
from turnstile.stress.figures.five import ORDER_RULES
from turnstile.stress.figures.values import FiveFigures, Recovery, StageFigures
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.report.machine import Machine
from turnstile.stress.stage import Stage
from turnstile.stress.tables import SECOND

_SAME_SECONDS: Final = 0.001


class Word(StrEnum):
    """A verdict in one word."""

    KEPT = "KEPT"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One stage that was carried out to its end."""

    recording: Recording
    verdict: Verdict
    figures: StageFigures

    @property
    def stage(self) -> Stage:
        """What was done."""
        return self.recording.stage

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The rules that did not hold."""
        return self.verdict.broken

    @property
    def violations(self) -> int:
        """How often any rule was broken."""
        return sum(finding.broken for finding in self.broken)

    @property
    def out_of_order(self) -> int:
        """How often something came before what should have come first."""
        return sum(finding.broken for finding in self.broken if finding.rule in ORDER_RULES)

    def recovery_of(self, fault: InjectedFault) -> Recovery | None:
        """Return what was measured of one fault."""
        began_seconds = (fault.began_at - self.recording.began_at) / SECOND
        for each in self.figures.recoveries:
            same = each.kind is fault.kind and each.target == fault.target
            if same and abs(each.at_seconds - began_seconds) < _SAME_SECONDS:
                return each
        return None

    @property
    def rules_asked(self) -> int:
        """Of how many rules this stage says anything."""
        return sum(1 for finding in self.verdict.findings if finding.looked_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run."""

    stages: tuple[StageReport, ...]
    """Those that were carried out, in order."""
    five: FiveFigures
    seed: int
    command_line: str
    started_at: datetime
    seconds: float
    """From the beginning of the first stage to the end of the last verdict."""
    machine: Machine
    """On which the harness ran."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Turnstile, its servers and libraries, where they are known."""
    installation: str
    """For people: `private: 2 executors, 2 workers`, or addresses without passwords."""
    collapses: tuple[str, ...] = ()
    """What ended though nobody asked it to, a stage that was broken off included: one sentence each."""

    @property
    def kept(self) -> bool:
        """Whether all promises were kept; a run in which nothing was checked has kept none."""
        return bool(self.stages) and not self.collapses and not any(stage.broken for stage in self.stages)

    @property
    def word(self) -> Word:
        """The verdict."""
        return Word.KEPT if self.kept else Word.BROKEN

    @property
    def violations(self) -> int:
        """How often any rule was broken, in all stages."""
        return sum(stage.violations for stage in self.stages)

    @property
    def executions(self) -> int:
        """How many ended, in all stages."""
        return sum(stage.figures.ended for stage in self.stages)
