"""What only tests ask about states: where executions begin, what holds a slot, what may follow."""

from typing import Final

from turnstile.common.domain.states import TRANSITIONS, Status

HOLDS_SLOT: Final = frozenset({Status.SCHEDULED, Status.RUNNING})
"""States that imply a slot. A terminal execution may still hold one, until its end is committed (P1)."""

INITIAL: Final = frozenset({Status.QUEUED, Status.DELAYED})
"""States in which an execution can be created."""


def may_move(source: Status, target: Status) -> bool:
    """Return whether any transition leads from `source` to `target`."""
    return any(source in t.sources and target is t.target for t in TRANSITIONS)
