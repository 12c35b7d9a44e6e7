"""The two links as closed loops: what was told and not heard is told again, from the rows (P4, P7).

In: slots that were offered and not claimed, ends that were told and not settled, and how many offers the
broker still holds. Out: the same message once more; claims are fenced and settles idempotent, so a copy is
harmless, and what the broker holds is not copied.
"""

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.executor.decisions import Grants
from turnstile.executor.ends import read_ends
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import REPAIRS
from turnstile.executor.queue_manager import grant_of


class Links:
    """The sweeps over `execution.scheduled` and `execution.completed`."""

    def __init__(
        self,
        database: Database,
        hand_over: HandOver,
        *,
        dispatch_timeout_seconds: float,
        settle_timeout_seconds: float,
        event_result_max_bytes: int,
        rows_max: int,
    ) -> None:
        self._database = database
        self._hand_over = hand_over
        self._dispatch_timeout_seconds = dispatch_timeout_seconds
        self._settle_timeout_seconds = settle_timeout_seconds
        self._event_result_max_bytes = event_result_max_bytes
        self._rows_max = rows_max

    async def repeat_offers(self) -> int:
        """Offer again what was granted and not claimed, as far as the broker holds its offer no more."""
        due = await self._database.fetch(
            "SELECT * FROM turnstile.due_pools($1)", self._dispatch_timeout_seconds
        )
        ready = await self._hand_over.ready_offers(row["pool"] for row in due)
        seen = [row for row in due if row["pool"] in ready]
        if not seen:
            return 0
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.missing_offers($1, $2, $3, $4, $5, $6)",
            self._dispatch_timeout_seconds,
            min(row["looked_at"] for row in seen),
            [row["pool"] for row in seen],
            [row["offered"] for row in seen],
            [ready[row["pool"]] for row in seen],
            self._rows_max,
        )
        if rows:
            reached(CrashPoint.SWEPT)
            grants = [grant_of(row) for row in rows]
            # What was withheld is offered for the first time: no message was lost.
            REPAIRS.add("offer_repeated", count=sum(grant.waited_seconds is None for grant in grants))
            await self._hand_over.offer(Grants(granted=grants))
        return len(rows)

    async def repeat_completions(self) -> int:
        """Tell again what ended and was not settled."""
        rows = await self._database.fetch(
            "SELECT * FROM turnstile.due_completions($1, $2)", self._settle_timeout_seconds, self._rows_max
        )
        if rows:
            reached(CrashPoint.SWEPT)
            REPAIRS.add("completion_repeated", count=len(rows))
            await self._hand_over.tell(
                await read_ends(
                    self._database, [row[0] for row in rows], result_bytes_max=self._event_result_max_bytes
                )
            )
        return len(rows)
