"""Holds a recording against the promises: one rule per function, each in the module of its promise.

In: a `Recording` and `Tolerances`. Out: `Violation`s, none for a history as it should be. Pure: the same
recording has the same verdict for ever. Next: `limit` (P1), `order` (P2), `ends` (P3), `telling` (P4),
`keeping` (P5), `fence` and `copies` (P6), `healing` (P7); `figures` measures instead of judging.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tests.proof.history.copies import claims_run_once, runs_end_with_their_attempts
from tests.proof.history.ends import lives_are_legal, lives_stand_in_the_rows
from tests.proof.history.fence import (
    attempts_are_numbered,
    attempts_have_one_worker,
    lost_workers_change_nothing,
    workers_live_once,
)
from tests.proof.history.healing import free_slots_are_granted, lost_work_is_reclaimed
from tests.proof.history.keeping import executions_end, submits_are_kept
from tests.proof.history.limit import grants_keep_the_limit, runs_keep_the_limit
from tests.proof.history.order import first_grants_go_by_id, grants_take_the_head, ids_go_by_arrival
from tests.proof.history.recording import Recording
from tests.proof.history.telling import ends_are_told, slots_are_freed_in_time, slots_are_freed_once
from tests.proof.history.tolerances import Tolerances, Violation

Rule: TypeAlias = Callable[[Recording, Tolerances], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    grants_keep_the_limit,
    runs_keep_the_limit,
    grants_take_the_head,
    first_grants_go_by_id,
    ids_go_by_arrival,
    lives_are_legal,
    lives_stand_in_the_rows,
    ends_are_told,
    slots_are_freed_once,
    slots_are_freed_in_time,
    submits_are_kept,
    executions_end,
    attempts_are_numbered,
    attempts_have_one_worker,
    lost_workers_change_nothing,
    workers_live_once,
    claims_run_once,
    runs_end_with_their_attempts,
    free_slots_are_granted,
    lost_work_is_reclaimed,
)


def violations(recording: Recording, *, tolerances: Tolerances) -> list[Violation]:
    """Return everything that breaks a promise."""
    return [violation for rule in RULES for violation in rule(recording, tolerances)]
