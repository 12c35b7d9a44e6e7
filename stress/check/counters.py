"""What the installation says of itself, against a recount.

In: a recording. Out: two findings. Next: `judge`.
"""

import numpy as np

from turnstile.stress.check.accounting import has_ended
from turnstile.stress.check.breach import Breach, finding
from turnstile.stress.check.columns import column
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.recording import Recording


def counters_agree(recording: Recording) -> Finding:
    """Judge four numbers of each action: enqueued, completed, waiting and active.

    The last two must be 0 once everything has ended; an action of which something is stuck moves on while
    it is read, so of that they are not judged.
    """
    actions, ended = (
        column(recording.executions, "queue") // max(recording.stage.load.keys, 1),
        has_ended(recording),
    )
    all_recorded = np.bincount(actions[actions >= 0], minlength=len(recording.counters)).tolist()
    all_over = np.bincount(actions[ended & (actions >= 0)], minlength=len(recording.counters)).tolist()
    looked_at = 0
    sentences: list[str] = []
    for action, says in enumerate(recording.counters):
        recorded, over = all_recorded[action], all_over[action]
        claims = {
            "enqueued": (says.enqueued - says.enqueued_before, recorded),
            "completed": (says.completed - says.completed_before, over),
        }
        if recorded == over:
            claims |= {"waiting": (says.queue_length, 0), "active": (says.active_count, 0)}
        looked_at += len(claims)
        sentences += [
            f"action {action} counts {said} {name}, a recount says {counted}"
            for name, (said, counted) in claims.items()
            if said != counted
        ]
    rows = np.arange(len(sentences), dtype=np.int64)
    return finding(Rule.COUNTERS_AGREE, looked_at, Breach(rows=rows, sentence=sentences.__getitem__))


def audit_clean(recording: Recording) -> Finding:
    """Judge what `GET /audit` found; each check that found something is broken as often as it says."""
    audit = recording.audit
    if audit is None:
        return Finding(rule=Rule.AUDIT_CLEAN, looked_at=0, broken=0)
    found = {name: count for name, count in audit.faults.items() if count}
    return Finding(
        rule=Rule.AUDIT_CLEAN,
        looked_at=1,
        broken=sum(found.values()) or int(not audit.clean),
        examples=tuple(f"check {name} found {count}" for name, count in found.items())[:EXAMPLES_MAX]
        or (() if audit.clean else ("it is not clean, and does not say why",)),
    )
