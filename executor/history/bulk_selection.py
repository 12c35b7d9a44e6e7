"""What a cancel or a retry of many executions selects, and what it leaves out, with the reason.

In: ids, or a filter. Out: the executions that the operation applies to, and counts of the others by status.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import BaseModel, Field

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import TERMINAL, Status, is_terminal
from turnstile.executor.history.executions import Executions, Match
from turnstile.executor.history.filters import ExecutionFilter

_EVERY: Final = ExecutionFilter()
_UNSUCCESSFUL: Final = (Status.FAILED, Status.TIMEOUT, Status.EXPIRED, Status.ABANDONED)
"""What a retry selects if its filter names no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkVerb:
    """Which executions an operation applies to."""

    name: str
    applies_to: frozenset[Status]
    by_default: frozenset[Status]
    """What a filter selects that names no status."""

    def reason(self, status: Status) -> str:
        """Return why executions of this status are left out."""
        if status not in self.applies_to:
            return "has ended" if is_terminal(status) else "has not ended"
        return f"not selected: {self.name} these by their status, {status}"

    def split(self, given: Sequence[Status] | None) -> tuple[list[Status], list[Status]]:
        """Return what a filter with these statuses selects, and what it leaves out; None: with no status.

        Raises Refusal if it selects nothing.
        """
        asked = frozenset(given or Status)
        selected = asked & (self.applies_to if given else self.by_default)
        if not selected:
            names, expected = (
                ", ".join(status for status in Status if status in some) for some in (asked, self.applies_to)
            )
            raise Refusal(
                Code.INVALID_MESSAGE,
                f"filter.status: {self.name} does not apply to {names}; expected {expected}",
            )
        in_order = [status for status in Status if status in asked]
        return [s for s in in_order if s in selected], [s for s in in_order if s not in selected]


CANCEL: Final = BulkVerb(
    name="cancel", applies_to=frozenset(Status) - TERMINAL, by_default=frozenset(Status) - TERMINAL
)
RETRY: Final = BulkVerb(name="retry", applies_to=TERMINAL, by_default=frozenset(_UNSUCCESSFUL))


class LeftOut(BaseModel):
    """Executions that were named or match the other conditions, and are not changed."""

    status: Status | None = Field(description="Their status; null: there is no such execution.")
    count: int = Field(examples=[2])
    reason: str = Field(description="Why they are left out.", examples=["has not ended"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What a call selects, and what it leaves out."""

    wanted: ExecutionFilter = _EVERY
    matches: Sequence[Match] = ()
    """Of ids; a filter is read page by page."""
    left_out: Sequence[LeftOut] = ()
    is_partial: bool = False
    """Only the newest executions were counted in `left_out`."""


async def select_ids(
    executions: Executions, ids: Sequence[int], verb: BulkVerb, scope: tuple[str, ...] | None
) -> Selected:
    """Select the named executions that the operation applies to."""
    named = frozenset(map(ExecutionId, ids))
    found = await executions.named(sorted(named), scope)
    left_out = _left_out(
        verb, Counter(match.status for match in found if match.status not in verb.applies_to)
    )
    if len(found) < len(named):
        left_out.append(LeftOut(status=None, count=len(named) - len(found), reason="no such execution"))
    return Selected(matches=[match for match in found if match.status in verb.applies_to], left_out=left_out)


async def select_matching(
    executions: Executions, wanted: ExecutionFilter, others: Sequence[Status], verb: BulkVerb
) -> Selected:
    """Select what a filter matches, and count the executions of other statuses that it would match."""
    if not others:
        return Selected(wanted=wanted)
    counts = await executions.counts(replace(wanted, statuses=tuple(others)))
    return Selected(wanted=wanted, left_out=_left_out(verb, counts.by_status), is_partial=counts.is_cut)


def _left_out(verb: BulkVerb, by_status: Mapping[Status, int]) -> list[LeftOut]:
    return [
        LeftOut(status=status, count=count, reason=verb.reason(status))
        for status, count in sorted(by_status.items(), key=lambda each: -each[1])
    ]
