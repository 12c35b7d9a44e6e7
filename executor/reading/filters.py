"""Which executions a list, or an operation on many, is about."""

from dataclasses import dataclass
from datetime import datetime

from turnstile.common.domain.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """All of these must hold; None: any will do."""

    action_ref: str | None = None
    statuses: tuple[Status, ...] | None = None
    concurrency_key: str | None = None
    created_after: datetime | None = None
    """This instant or later."""
    created_before: datetime | None = None
    """Earlier than this instant."""
    worker_id: str | None = None
    """The worker of its latest attempt."""
    metadata: tuple[tuple[str, str], ...] = ()
    """Each of these keys has this value, as text."""

    def conditions(self, action_id: int | None) -> tuple[object, ...]:
        """Return the parameters of the queries that filter, in their order."""
        return (
            action_id,
            self.statuses,
            self.concurrency_key,
            self.created_after,
            self.created_before,
            self.worker_id,
            [key for key, _ in self.metadata],
            [value for _, value in self.metadata],
        )
