"""How long the work that was left after the last fault takes at least, whatever the system does.

In: what ended later, from the database. Out: the seconds that worker slots, a limit or a rate need for it.
So much is added to the bound on the time until all have ended: the faults of a seed decide what they leave.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from tests.proof.chaos.load import GATES, NUMBERS
from tests.support.history import session_of

_LEFT: Final = """
SELECT e.action_ref, nullif(e.key, '') AS key, count(*) AS executions,
       sum(least((e.parameters ->> 'seconds')::double precision, e.timeout_seconds)) AS seconds
FROM ledger.execution e
WHERE e.started_at IS NOT NULL AND e.completed_at > $1
GROUP BY 1, 2
"""


class Left(NamedTuple):
    """What ran in one queue after the last fault."""

    ref: str
    concurrency_key: str | None
    executions: int
    seconds: float
    """The sum of their durations."""


async def read_left(database_url: str, over_at: datetime) -> list[Left]:
    """Return what ended after this instant, by queue."""
    async with session_of(database_url) as connection:
        return [Left(*row.values()) for row in await connection.fetch(_LEFT, over_at)]


def shortest_seconds(left: Iterable[Left], *, worker_slots: int) -> float:
    """Return how long this takes if every slot is always in use and every start comes as soon as it may."""
    return max(_bounds(list(left), worker_slots))


def _bounds(left: list[Left], worker_slots: int) -> Iterator[float]:
    yield sum(each.seconds for each in left) / worker_slots
    starts: dict[str, int] = defaultdict(int)
    for each in left:
        limit = NUMBERS[each.ref]
        if limit is not None:
            yield each.seconds / limit
        starts[each.ref] += each.executions
    for name, fields in [*GATES.actions.items(), *GATES.resources.items()]:
        if "rate" in fields:
            users = [ref for ref in starts if ref == name or name in _resources_of(ref)]
            per_second = fields["rate"]["starts"] / fields["rate"]["per"]
            yield sum(starts[ref] for ref in users) / per_second


def _resources_of(ref: str) -> set[str]:
    uses = GATES.actions.get(ref, {}).get("uses", ())
    return {use if isinstance(use, str) else use["resource"] for use in uses}
