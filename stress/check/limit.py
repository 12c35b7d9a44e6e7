"""The limit, by two witnesses: the slots in the record, and the runs that the actions saw themselves.

In: a recording. Out: two findings. Next: `order`.
"""

import numpy as np

from turnstile.stress.check.breach import breach, finding
from turnstile.stress.check.columns import column, moment, taken
from turnstile.stress.check.in_force import limits_in_force
from turnstile.stress.check.occupancy import at_each_start
from turnstile.stress.check.runs import counted_runs
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE


def limit_held(recording: Recording) -> Finding:
    """Judge each grant: with it, no more slots of its queue are held than the limit in force allows.

    The record shows a slot from its grant to the end of its attempt. In truth it is held a little longer,
    until that end has come round, so what is found here is broken in any case. A limit that is lowered takes
    nothing away: it only forbids to grant.
    """
    attempts = recording.attempts
    attempts = attempts[(attempts["granted_at"] != NEVER) & (attempts["queue"] != NONE)]
    queues, granted_at = column(attempts, "queue"), column(attempts, "granted_at")
    held = at_each_start(queues, granted_at, column(attempts, "ended_at"))
    limits = limits_in_force(recording).most(queues, granted_at, granted_at)

    def sentence(row: int) -> str:
        return (
            f"execution {attempts['execution_id'][row]} was granted a slot of queue {queues[row]} at"
            f" {moment(recording, granted_at[row])}: {held[row]} held it then, the limit was {limits[row]}"
        )

    return finding(Rule.LIMIT_HELD, len(attempts), breach(held > limits, sentence))


def limit_run(recording: Recording) -> Finding:
    """Judge each start: with it, no more run in its queue than the limit allowed since it was granted.

    `runs` says for how long a run counts. Runs whose end nobody saw are not among those looked at.
    """
    runs, counted = recording.runs, counted_runs(recording)
    queues = column(runs, "queue")
    running = at_each_start(queues, counted.starts, counted.ends)
    granted_at = taken(column(recording.attempts, "granted_at"), counted.attempt_rows, NEVER)
    since = np.minimum(granted_at, counted.starts)
    limits = limits_in_force(recording).most(queues, since, counted.starts)

    def sentence(row: int) -> str:
        return (
            f"execution {runs['execution_id'][row]} started in queue {queues[row]} at"
            f" {moment(recording, runs['started_at'][row])}: {running[row]} ran then, the limit was"
            f" {limits[row]}"
        )

    return finding(
        Rule.LIMIT_RUN, int(counted.known.sum()), breach((running > limits) & (queues != NONE), sentence)
    )
