"""The lines: a free slot beside a waiting execution is granted, the due wakes, the late ends (P7).

Each commits what it moves and waits for no broker: what follows is told by tasks of their own (`HandOver`).
"""

from collections.abc import Sequence
from typing import Final

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import QueueId
from turnstile.executor.decisions import Grants
from turnstile.executor.ends import read_ends
from turnstile.executor.hand_over import HandOver
from turnstile.executor.metrics import REPAIRS
from turnstile.executor.queue_manager import QueueManager, grants_of, moved

_LINES_MAX: Final = 20_000
"""Lines looked at per tick; where there are more the next tick goes on behind them."""

_SLICES_MAX: Final = 20
"""Slices of one action's queues in one sweep: then the other actions have their turn."""


class Lines:
    """The sweeps over what waits."""

    def __init__(
        self, database: Database, queue_manager: QueueManager, hand_over: HandOver, *, rows_max: int
    ) -> None:
        self._database = database
        self._queue_manager = queue_manager
        self._hand_over = hand_over
        self._rows_max = rows_max
        self._looked_up_to = QueueId(0)

    async def grant_idle_slots(self) -> int:
        """Grant where a free slot stands beside a waiting execution."""
        row = await self._database.fetchrow(
            "SELECT * FROM turnstile.idle_queues($1, $2)", self._looked_up_to, _LINES_MAX
        )
        assert row is not None
        self._looked_up_to = row["next_id"]
        granted = 0
        idle = row["queue_ids"] or []
        for start in range(0, len(idle), self._rows_max):
            grants = await self._queue_manager.grant(idle[start : start + self._rows_max])
            reached(CrashPoint.SWEPT)
            REPAIRS.add("slot_granted", count=len(grants.granted))
            granted += len(grants.granted)
            if not self._offer_later(grants):
                # Nobody can be offered anything now: a long line is granted on at the pace of the ticks.
                return 0
        return granted

    async def roll_out_limits(self) -> int:
        """Bring changed limits and pauses to the queues that do not have them yet, slice by slice."""
        rows = await self._database.fetch("SELECT turnstile.rollouts_due($1)", self._rows_max)
        healed = 0
        for (action_id,) in rows:
            for _ in range(_SLICES_MAX):
                row = await self._database.fetchrow(
                    "SELECT * FROM turnstile.roll_out($1, $2)", action_id, self._rows_max
                )
                assert row is not None
                reached(CrashPoint.SWEPT)
                await self._hand_over.offer(grants_of(row))
                healed += row["changed"]
                if row["looked_at"] < self._rows_max:
                    break
        return healed

    async def wake_due(self) -> int:
        """Let what is due take its place in line."""
        row = await self._database.fetchrow("SELECT * FROM turnstile.wake_due($1)", self._rows_max)
        assert row is not None
        woken = [moved(item) for item in row["woken"] or ()]
        if woken:
            reached(CrashPoint.SWEPT)
        self._hand_over.announce_moves(woken)
        # Also where none woke: the same call may have granted to those that waited.
        self._offer_later(grants_of(row))
        return len(woken)

    async def expire_due(self) -> int:
        """End what did not start in time, and tell it."""
        rows = await self._database.fetch("SELECT * FROM turnstile.expire_due($1)", self._rows_max)
        moves = [moved(row) for row in rows]
        if moves:
            reached(CrashPoint.SWEPT)
        self._hand_over.announce_moves(moves)
        if moves:
            self._hand_over.tell_later(
                self._tell_ends([move.execution_id for move in moves]), count=len(moves)
            )
        return len(moves)

    def _offer_later(self, grants: Grants) -> bool:
        if not grants.granted:
            return True
        return self._hand_over.tell_later(self._hand_over.offer(grants), count=len(grants.granted))

    async def _tell_ends(self, execution_ids: Sequence[int]) -> None:
        await self._hand_over.tell(await read_ends(self._database, execution_ids, result_bytes_max=0))
