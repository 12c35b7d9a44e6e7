"""Which executions a list is about."""

from dataclasses import dataclass
from datetime import datetime

from common.domain.states import Status


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
