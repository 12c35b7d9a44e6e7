"""Which executions a list or a bulk operation selects, and how much one page reads.

A page reads a bounded number of candidates, so no filter makes it slow; it may be short, even empty, without
being the last.
"""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from turnstile.common.domain.states import TERMINAL, Status

CANDIDATES_MAX: Final = 50_000
"""Maximum number of executions that one page reads."""
PAGE_BYTES_MAX: Final = 4_000_000
"""Most bytes of documents on a page; the first execution is on it in any case."""
_LIVE: Final = frozenset({Status.SCHEDULED, Status.RUNNING, Status.DELAYED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """Which executions are selected: all conditions must hold; None: no condition."""

    action_ref: str | None = None
    statuses: tuple[Status, ...] | None = None
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    """Found by its index, whatever the bound of the candidates."""
    priority: int | None = None
    created_after: datetime | None = None
    """This instant or later."""
    created_before: datetime | None = None
    """Earlier than this instant."""
    completed_after: datetime | None = None
    """Ended at this instant or later."""
    completed_before: datetime | None = None
    """Ended earlier than this instant."""
    worker_id: str | None = None
    """The worker of the latest attempt."""
    error: str | None = None
    """Part of `type: message` of its error, in any case."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Each of these keys has this value, as text."""
    scope: tuple[str, ...] | None = None
    """The name of the action begins with one of these."""

    def conditions(self) -> dict[str, object]:
        """Return the conditions that are set, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["metadata"] = [key for key, _ in self.metadata] or None
        return {name: value for name, value in found.items() if value is not None}

    def metadata_values(self) -> list[str]:
        """Return the values of the keys in `conditions`, in their order."""
        return [value for _, value in self.metadata]

    @property
    def is_live(self) -> bool:
        """Whether it selects only what is delayed or at a worker, which few rows are."""
        return self.statuses is not None and _LIVE.issuperset(self.statuses)

    @property
    def is_unfinished(self) -> bool:
        """Whether it selects only what has not ended, and no index of the records leads there."""
        by_index = self.action_ref is not None or self.idempotency_key is not None
        return self.statuses is not None and not by_index and TERMINAL.isdisjoint(self.statuses)
