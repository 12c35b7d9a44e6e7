"""Puts all rules to a recording.

In: a `Recording`. Out: a `Verdict`, one finding for each `Rule`. Pure: the same recording has the same
verdict for ever. Next: `limit`, `order` and `starts`, `accounting` and `unexpected`, `idle`, `counters`.
"""

from collections.abc import Callable
from typing import Final

from turnstile.stress.check.accounting import nothing_lost, nothing_stuck, nothing_twice
from turnstile.stress.check.counters import audit_clean, counters_agree
from turnstile.stress.check.idle import no_idle_slot
from turnstile.stress.check.limit import limit_held, limit_run
from turnstile.stress.check.order import admitted_in_order, granted_in_order
from turnstile.stress.check.starts import started_in_order
from turnstile.stress.check.unexpected import nothing_unexpected
from turnstile.stress.check.verdict import Finding, Verdict
from turnstile.stress.recording import Recording

RULES: Final[tuple[Callable[[Recording], Finding], ...]] = (
    limit_held,
    limit_run,
    granted_in_order,
    admitted_in_order,
    started_in_order,
    nothing_lost,
    nothing_twice,
    nothing_unexpected,
    nothing_stuck,
    no_idle_slot,
    counters_agree,
    audit_clean,
)
"""In the order of `Rule`."""


def judge(recording: Recording) -> Verdict:
    """Return what came of every rule."""
    return Verdict(findings=tuple(rule(recording) for rule in RULES))
