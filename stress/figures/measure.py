"""Takes the figures of one stage.

In: a `Recording`. Out: `StageFigures`. Pure. Next: `hand_over`, `filling`, `recovery`; `five` puts those of
all stages together.
"""

import numpy as np

from turnstile.stress.check.columns import column
from turnstile.stress.figures.filling import idle_share, most_held, most_running, started_out_of_order
from turnstile.stress.figures.hand_over import grants_to_starts, hand_overs
from turnstile.stress.figures.recovery import recoveries
from turnstile.stress.figures.spread import spread
from turnstile.stress.figures.until import measured_until
from turnstile.stress.figures.values import Spread, StageFigures
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, SECOND


def measure(recording: Recording) -> StageFigures:
    """Return the figures of a stage."""
    until = measured_until(recording)
    ended, seconds = _pace(recording, until)
    handed = hand_overs(recording)
    return StageFigures(
        ended=ended,
        seconds=seconds,
        executions_per_second=ended / seconds if seconds else 0.0,
        sent_per_second=_sent_per_second(recording),
        answer=_answer(recording),
        hand_over=spread(handed.stop_to_start_ns),
        end_to_grant=spread(handed.end_to_grant_ns),
        grant_to_start=spread(grants_to_starts(recording, until)),
        most_held=most_held(recording, until),
        most_running=most_running(recording, until),
        idle_share=idle_share(recording, until),
        started_out_of_order=started_out_of_order(recording, until),
        recoveries=recoveries(recording),
    )


def _pace(recording: Recording, until: int) -> tuple[int, float]:
    """Return how many ended, and the seconds from the first request or the opening to the last of them."""
    ends = column(recording.executions, "completed_at")
    ends = ends[(ends <= until) & (ends != NEVER)]
    sent_at = int(column(recording.orders, "sent_at").min(initial=NEVER))
    first = sent_at if recording.opened_at == NEVER else recording.opened_at
    last = int(ends.max(initial=0))
    return len(ends), max(last - first, 0) / SECOND


def _sent_per_second(recording: Recording) -> float:
    confirmed = recording.orders[recording.orders["confirmed_at"] != NEVER]
    if not len(confirmed):
        return 0.0
    lasted_ns = int(confirmed["confirmed_at"].max()) - int(confirmed["sent_at"].min())
    return len(confirmed) * SECOND / lasted_ns if lasted_ns > 0 else 0.0


def _answer(recording: Recording) -> Spread | None:
    answered_at, sent_at = column(recording.orders, "answered_at"), column(recording.orders, "sent_at")
    answered = np.flatnonzero(answered_at != NEVER)
    return spread(answered_at[answered] - sent_at[answered])
