"""Every rule broken, in every way that it can be."""

from dataclasses import replace
from typing import Final

from tests.unit.stress.doctored import (
    ALONE,
    FREE,
    STEADY,
    Case,
    admitted_twice,
    case,
    changed_places,
    counted,
    forgotten,
    granted_late,
    granted_too_soon,
    moved,
    never_ended,
    never_granted,
    ran_too_long,
    rejected,
    sent_the_other_way,
    set_to,
    started_after_the_next,
    together,
    with_one_more,
    without,
)
from turnstile.common.domain.states import Status
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import Audit
from turnstile.stress.tables import NEVER, NONE, Answer, status_code

CASES: Final[dict[str, Case]] = {
    "granted past the limit": case(granted_too_soon, "3 held it then, the limit was 2", Rule.LIMIT_HELD),
    "ran past the limit": case(ran_too_long, "3 ran then, the limit was 2", Rule.LIMIT_RUN, plan=STEADY),
    "granted out of order": case(changed_places, "was granted a slot of queue", Rule.GRANTED_IN_ORDER),
    "granted out of order at limit 1": case(
        changed_places,
        ", while execution",
        Rule.GRANTED_IN_ORDER,
        Rule.STARTED_IN_ORDER,
        plan=ALONE,
    ),
    "arrived out of order": case(sent_the_other_way, "which it sent before", Rule.ADMITTED_IN_ORDER),
    "arrived out of order at limit 1": case(
        sent_the_other_way,
        "which its submitter sent after it",
        Rule.ADMITTED_IN_ORDER,
        Rule.STARTED_IN_ORDER,
        plan=ALONE,
    ),
    "started out of order": case(
        started_after_the_next, ", after execution", Rule.STARTED_IN_ORDER, plan=ALONE
    ),
    "lost": case(forgotten, "has no execution", Rule.NOTHING_LOST, Rule.COUNTERS_AGREE),
    "admitted twice": case(
        admitted_twice, "and execution", Rule.NOTHING_TWICE, Rule.COUNTERS_AGREE, plan=FREE
    ),
    "ran twice": case(
        with_one_more("runs", 9, process=77), "and in process 77", Rule.NOTHING_TWICE, plan=FREE
    ),
    "rejected": case(
        set_to("orders", 4, answer=Answer.REJECTED), "number 4 of submitter", Rule.NOTHING_UNEXPECTED
    ),
    "rejected, as it was answered": case(
        together(rejected, forgotten), "was rejected", Rule.NOTHING_UNEXPECTED, Rule.COUNTERS_AGREE
    ),
    "answered with another": case(
        set_to("orders", 4, execution_id=5), "answered with execution 5", Rule.NOTHING_UNEXPECTED
    ),
    "never sent": case(
        set_to("executions", 4, number=NONE), "was never sent", Rule.NOTHING_LOST, Rule.NOTHING_UNEXPECTED
    ),
    "in another queue": case(set_to("orders", 4, queue=99), "and was sent for 99", Rule.NOTHING_UNEXPECTED),
    "failed": case(
        set_to("executions", 4, status=status_code(Status.FAILED)), "ended as failed", Rule.NOTHING_UNEXPECTED
    ),
    "never ran": case(without("runs", 4), "never ran whole", Rule.NOTHING_UNEXPECTED),
    "attempt of nothing": case(
        with_one_more("attempts", 0, execution_id=5),
        "of execution 5, which is not there",
        Rule.NOTHING_UNEXPECTED,
        plan=FREE,
    ),
    "ended before its grant": case(
        moved("attempts", 4, "ended_at", -60_000), "in another order", Rule.NOTHING_UNEXPECTED, plan=FREE
    ),
    "ran as another": case(
        with_one_more("runs", 4, execution_id=5), "which is none of it", Rule.NOTHING_UNEXPECTED, plan=FREE
    ),
    "ran without a grant": case(
        with_one_more("runs", 4, attempt=9), "nobody granted it", Rule.NOTHING_UNEXPECTED, plan=FREE
    ),
    "ran before its grant": case(
        moved("runs", 4, "started_at", -7), "before its grant at", Rule.NOTHING_UNEXPECTED, plan=FREE
    ),
    "ran after its end": case(
        moved("runs", 4, "stopped_at", 7), "and had ended at", Rule.NOTHING_UNEXPECTED, plan=FREE
    ),
    "collapsed": case(
        lambda recording: replace(recording, collapses=("worker-1 ended with 3",)),
        "worker-1 ended with 3",
        Rule.NOTHING_UNEXPECTED,
    ),
    "never ended": case(never_ended, "was still running", Rule.NOTHING_STUCK, Rule.COUNTERS_AGREE),
    "ended at no time": case(
        set_to("executions", 4, completed_at=NEVER),
        "was still completed",
        Rule.NOTHING_STUCK,
        Rule.COUNTERS_AGREE,
    ),
    "never granted": case(
        never_granted,
        "was still queued",
        Rule.NOTHING_STUCK,
        Rule.COUNTERS_AGREE,
        Rule.GRANTED_IN_ORDER,
        Rule.NO_IDLE_SLOT,
    ),
    "granted late": case(granted_late, "waiting for 3.", Rule.NO_IDLE_SLOT),
    "granted late without a limit": case(granted_late, "waiting for 3.", Rule.NO_IDLE_SLOT, plan=FREE),
    "enqueued": case(counted(enqueued=1), "action 1 counts", Rule.COUNTERS_AGREE),
    "enqueued before": case(counted(enqueued_before=-1), "enqueued", Rule.COUNTERS_AGREE),
    "completed": case(counted(completed=-1), "completed, a recount", Rule.COUNTERS_AGREE),
    "still waiting": case(counted(queue_length=1), "1 waiting", Rule.COUNTERS_AGREE),
    "still active": case(counted(active_count=2), "2 active", Rule.COUNTERS_AGREE),
    "audit": case(
        lambda recording: replace(recording, audit=Audit(clean=False, faults={"depth": 3})),
        "check depth found 3",
        Rule.AUDIT_CLEAN,
    ),
    "audit without a reason": case(
        lambda recording: replace(recording, audit=Audit(clean=False)), "not clean", Rule.AUDIT_CLEAN
    ),
}
"""By what is wrong."""
