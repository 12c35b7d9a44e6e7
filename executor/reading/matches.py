"""What an operation on many executions finds: their ids and where they stood, a page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnstile.common.domain.identifiers import ExecutionId
from turnstile.common.domain.states import Status


class Match(NamedTuple):
    """One execution that passed the filter."""

    id: ExecutionId
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """A page. It may be short, even empty, and yet not be the last."""

    items: Sequence[Match] = ()
    next_id: int | None = None
    """Where the next page starts; None: nothing is left."""
    up_to_id: int | None = None
    """The last execution that is looked at, on all pages."""
    action_is_known: bool = True
