"""The report of a run of either mode: what happened when, statistics, violations, how to repeat it."""

from typing import Final

from tests.proof.chaos.environment import VIOLATIONS
from tests.proof.chaos.run import Outcome

_SHOWN_MAX: Final = 40


def shown(outcome: Outcome) -> str:
    """Return the report of one seed."""
    course, log, seen = outcome.course, outcome.course.log, outcome.statistics
    ends = ", ".join(f"{count} {end}" for end, count in sorted(seen.ends.items()))
    checked = ", ".join(f"{rule} {count}" for rule, count in sorted(seen.passages.items()))
    lines = [f"seed {outcome.seed}: {outcome.seconds:.0f} s of load and {outcome.mode}", ""]
    lines.append(f"  {'at':>7}  {'lasted':>7}  {outcome.mode}")
    for began_at, ended_at, what in outcome.timeline:
        at_seconds = (began_at - course.began_at).total_seconds()
        lines.append(f"  {at_seconds:5.1f} s  {(ended_at - began_at).total_seconds():5.1f} s  {what}")
    lines += [
        "",
        *outcome.details,
        f"  submitted          {len(log.sent)}, {log.confirmed} confirmed, {log.repeated} times sent again",
        f"  cancels, changes   {log.cancels}, {log.changes}",
        f"  executions         {seen.executions}: {ends}",
        f"  grants, runs       {seen.grants}, {seen.runs}; {seen.reclaims} reclaims from {seen.workers_lost}"
        f" lost workers; {seen.completions_published} ends published",
        f"  worst idle slot    {seen.worst_idle_seconds:.1f} s",
        f"  gates              checked {checked}",
        f"  drained in         {course.drained_in_seconds:.1f} s",
        f"  violations         {len(outcome.violations) or 'none'}",
        *(f"    {violation}" for violation in outcome.violations[:_SHOWN_MAX]),
    ]
    if len(outcome.violations) > _SHOWN_MAX:
        lines.append(f"    and {len(outcome.violations) - _SHOWN_MAX} more, in {VIOLATIONS}")
    if outcome.violations:
        lines.append(f"  repeat with        {outcome.replay}")
    if outcome.folder.exists():
        lines.append(f"  logs               {outcome.folder}")
    return "\n".join(lines) + "\n"
