"""The result of a run: each scenario with its verdict and metrics, and the machine on which it ran."""

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from turnstile.common.version import installed_version
from turnstile.stress.check.verdict import Finding, Rule, Verdict
from turnstile.stress.metrics import ScenarioMetrics
from turnstile.stress.recording import Recording
from turnstile.stress.scenario import Scenario

_OF_ORDER: Final = frozenset(
    {
        Rule.GRANTED_IN_ORDER,
        Rule.ADMITTED_IN_ORDER,
        Rule.STARTED_IN_ORDER,
        Rule.PASSED_IN_ORDER,
        Rule.SHARED_FAIRLY,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioReport:
    """One scenario that was completed."""

    recording: Recording
    verdict: Verdict
    metrics: ScenarioMetrics

    @property
    def scenario(self) -> Scenario:
        """The scenario."""
        return self.recording.scenario

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The rules that were broken."""
        return self.verdict.broken

    @property
    def violations(self) -> int:
        """The number of violations."""
        return sum(finding.broken for finding in self.broken)

    @property
    def out_of_order(self) -> int:
        """The number of order violations."""
        return sum(finding.broken for finding in self.broken if finding.rule in _OF_ORDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The metadata of a run. Field names are keys of `report.json`."""

    seed: int
    command_line: str
    started_at: datetime
    machine: str
    """On which it ran: a rate means nothing without it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Turnstile, and of its private servers."""
    installation: str
    """For display: `private: 2 executors, 2 workers`, or URLs without passwords."""

    @classmethod
    def now(cls, *, seed: int, command_line: str, installation: str) -> Self:
        """Return the facts about a run that begins now, on this machine."""
        return cls(
            seed=seed,
            command_line=command_line,
            started_at=datetime.now(UTC),
            machine=_machine(),
            versions={"turnstile": installed_version()},
            installation=installation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run."""

    info: RunInfo
    scenarios: tuple[ScenarioReport, ...]
    """The completed scenarios in order."""
    seconds: float
    """From the beginning of the first scenario to the end of the last check."""
    collapses: tuple[str, ...] = ()
    """Failures of the run itself, such as an interrupted scenario: one sentence each."""

    @property
    def passed(self) -> bool:
        """Whether every check passed; a run without a completed scenario has not passed."""
        return (
            bool(self.scenarios)
            and not self.collapses
            and not any(scenario.broken for scenario in self.scenarios)
        )

    @property
    def violations(self) -> int:
        """The number of violations in all scenarios."""
        return sum(scenario.violations for scenario in self.scenarios)

    @property
    def executions(self) -> int:
        """The number of ended executions in all scenarios."""
        return sum(scenario.metrics.ended for scenario in self.scenarios)


def _machine() -> str:
    """Describe this machine, with the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    python = f"{sys.implementation.name} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()}"
    return f"{_processor()}, cores: {cores}, {memory_gib:.1f} GiB, {system}, {python}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    return platform.machine()
