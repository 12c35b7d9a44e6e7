"""Returns the statements that select executions by a filter: one filter for lists and bulk operations.

In: a filter, where a page starts, bounds. Out: SQL text and arguments for asyncpg. A page of executions reads
a bounded number of candidates, so no filter makes it slow; it may be short, even empty, without being the
last. The first call imports `selects`, which takes a moment: an event loop calls these functions in a thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from turnstile.common.domain.states import TERMINAL, Status

if TYPE_CHECKING:
    from turnstile.executor.queries.selects import Compiled

CANDIDATES_MAX: Final = 50_000
"""Maximum number of executions that one page reads."""
PAGE_BYTES_MAX: Final = 4_000_000
"""Most bytes of documents on a page; the first execution is on it in any case."""
_STARTED_OR_DELAYED: Final = frozenset({Status.SCHEDULED, Status.RUNNING, Status.DELAYED})

Statement = tuple[Any, ...]
"""SQL text, then its arguments."""


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

    def values(self, action_id: int | None) -> dict[str, object]:
        """Return the values of the conditions that are set."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        # The statements compare the id of the action, and metadata as two columns.
        found |= {"action_id": action_id, "action_ref": None}
        found["metadata"] = [key for key, _ in self.metadata] or None
        set_values = {name: value for name, value in found.items() if value is not None}
        return set_values | {"metadata_values": [value for _, value in self.metadata]}


def listed_executions(
    wanted: ExecutionFilter, action_id: int | None, *, before_id: int, limit: int
) -> Statement:
    """Select executions with their documents, newest first, those before an id."""
    from turnstile.executor.queries.selects import listed  # noqa: PLC0415

    statuses = wanted.statuses
    is_live = statuses is not None and _STARTED_OR_DELAYED.issuperset(statuses)
    has_ended = statuses is not None and TERMINAL.issuperset(statuses)
    values = wanted.values(action_id)
    compiled = listed(frozenset(values), is_live=is_live, has_ended=has_ended)
    return _bound(compiled, values, before_id=before_id, limit=limit)


def unfinished_executions(
    wanted: ExecutionFilter, action_id: int | None, *, before_id: int, limit: int
) -> Statement:
    """Select executions that have not ended, newest first, those before an id.

    A bulk cancel begins at the tail of a queue, so that its head is not started meanwhile.
    """
    from turnstile.executor.queries.selects import unfinished  # noqa: PLC0415

    values = wanted.values(action_id)
    return _bound(unfinished(frozenset(values)), values, before_id=before_id, limit=limit)


def ended_executions(
    wanted: ExecutionFilter,
    action_id: int | None,
    *,
    after_id: int,
    up_to_id: int,
    limit: int,
    not_made_under: str | None,
) -> Statement:
    """Select executions that have ended, oldest first, so that retries keep the order of the first requests.

    What a bulk retry made under the idempotency key `not_made_under`, and retries of that, are left out: a
    repeated call must not retry its own results.
    """
    from turnstile.executor.queries.selects import ended  # noqa: PLC0415

    values = wanted.values(action_id)
    if not_made_under is not None:
        values["retry_key"] = not_made_under
    return _bound(ended(frozenset(values)), values, after_id=after_id, up_to_id=up_to_id, limit=limit)


def counted_executions(wanted: ExecutionFilter, action_id: int | None) -> Statement:
    """Count the newest executions by status, among at most `CANDIDATES_MAX`.

    The last row has no status, and in place of a count whether there are more executions than were read (1).
    """
    from turnstile.executor.queries.selects import counted  # noqa: PLC0415

    values = wanted.values(action_id)
    return _bound(counted(frozenset(values)), values)


def _bound(compiled: "Compiled", values: Mapping[str, object], **more: object) -> Statement:
    bounds = {"candidates_max": CANDIDATES_MAX, "bytes_max": PAGE_BYTES_MAX}
    found = {**compiled.constants, **bounds, **values, **more}
    return compiled.text, *(found[name] for name in compiled.names)
