"""What a check comes to: for each rule how often it was looked at, how often it was broken, and examples."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Rule(StrEnum):
    """Everything that must hold of a history; the value is the rule as a sentence."""

    LIMIT_HELD = "never more slots granted than the limit"
    LIMIT_RUN = "never more running at once than the limit"
    GRANTED_IN_ORDER = "slots are granted in the order of arrival"
    ADMITTED_IN_ORDER = "what one submitter sends first arrives first"
    STARTED_IN_ORDER = "at limit 1 they start in the order in which they were sent"
    NOTHING_LOST = "every confirmed request has an execution"
    NOTHING_TWICE = "no request has two executions, and no attempt runs twice"
    NOTHING_UNEXPECTED = "nothing runs, ends or fails that should not"
    NOTHING_STUCK = "everything ends"
    NO_IDLE_SLOT = "no free slot stands beside a waiting execution for longer than a watchdog tick"
    COUNTERS_AGREE = "the installation's own counters equal a recount"
    AUDIT_CLEAN = "the installation's own audit finds nothing"


EXAMPLES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of one rule."""

    rule: Rule
    looked_at: int
    """Of how many grants, executions, starts ... it was asked; 0: there was nothing to ask it of."""
    broken: int
    examples: tuple[str, ...] = ()
    """One sentence each, the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All rules, broken or not."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Those that were broken; none: all promises were kept."""
        return tuple(finding for finding in self.findings if finding.broken)
