"""The result of a run: each scenario with its verdict and metrics, and the machine on which it ran."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Self

from turnstile.stress.check.verdict import Finding, Rule, Verdict
from turnstile.stress.metrics.scenario import ScenarioMetrics
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
class Machine:
    """The machine of a measurement; a rate means nothing without it."""

    processor: str
    cores: int
    """Usable by this process."""
    memory_gib: float
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Return this one."""
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return cls(
            processor=_processor() or platform.machine(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_gib=round(pages * page_bytes / 2**30, 1),
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{sys.implementation.name} {platform.python_version()}",
        )

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.processor}, {cores}, {self.memory_gib:g} GiB, {self.kernel}, {self.python}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The metadata of a run. Field names are keys of `report.json`."""

    seed: int
    command_line: str
    started_at: datetime
    machine: Machine
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Turnstile, its servers and libraries, where known."""
    installation: str
    """For display: `private: 2 executors, 2 workers`, or URLs without passwords."""

    @classmethod
    def now(cls, *, seed: int, command_line: str, installation: str) -> Self:
        """Return the facts about a run that begins now, on this machine."""
        return cls(
            seed=seed,
            command_line=command_line,
            started_at=datetime.now(UTC),
            machine=Machine.here(),
            versions=_library_versions(),
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


_LIBRARIES: Final = ("turnstile", "aio-pika", "asyncpg", "uvloop", "numpy")


def _library_versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return None
