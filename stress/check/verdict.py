"""The result of a check: for each rule how often it was checked, how often it was broken, and examples."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Rule(StrEnum):
    """The rules of a history; the value is the rule as a sentence."""

    LIMIT_HELD = "never more granted than the limit, except in a run at one worker"
    LIMIT_RUN = "never more running at once than the limit"
    GRANTED_IN_ORDER = "executions are granted in the order of arrival"
    ADMITTED_IN_ORDER = "requests of one submitter are admitted in the order of sending"
    STARTED_IN_ORDER = "executions start in the order of arrival, at limit 1 and at each worker"
    NOTHING_LOST = "every confirmed request has an execution"
    NOTHING_TWICE = "no request has two executions, and no attempt runs twice"
    NOTHING_UNEXPECTED = "nothing runs, ends or fails unexpectedly"
    NOTHING_STUCK = "every execution ends"
    NO_IDLE_SLOT = "no slot stays free for longer than a watchdog tick while an execution waits"
    UNITS_HELD = "never more units of a gate acquired than its capacity"
    PASSED_IN_ORDER = "executions pass each gate in its order"
    RATE_KEPT = "never more starts than a rate allows"
    SHARED_FAIRLY = "what waits at a fair gate gets its share"
    COUNTERS_AGREE = "the counters of the installation equal a recount"
    AUDIT_CLEAN = "the audit of the installation finds nothing"


EXAMPLES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one rule."""

    rule: Rule
    checked: int
    """The number of grants, executions, starts ... it was applied to; 0: there were none."""
    broken: int
    examples: tuple[str, ...] = ()
    """The first violations, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The findings of all rules."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The rules that were broken; empty: the check passed."""
        return tuple(finding for finding in self.findings if finding.broken)


def findings_of(checked: Mapping[Rule, int], broken: Iterable[tuple[Rule, str]]) -> list[Finding]:
    """Return one finding for each of these rules; the first sentences about one are its examples."""
    counts: Counter[Rule] = Counter()
    examples: dict[Rule, list[str]] = {rule: [] for rule in checked}
    for rule, sentence in broken:
        counts[rule] += 1
        if counts[rule] <= EXAMPLES_MAX:
            examples[rule].append(sentence)
    return [
        Finding(rule=rule, checked=number, broken=counts[rule], examples=tuple(examples[rule]))
        for rule, number in checked.items()
    ]
