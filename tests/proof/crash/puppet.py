"""A worker that does what no worker should: claims and falls silent, ends and tells nobody, will not stop.

In: the statements that every worker may call. Out: rows as a worker that died, hangs or was cut off leaves
them, for the watchdog to find.
"""

from dataclasses import dataclass, field
from uuid import uuid4

from tests.proof.crash.ground import Ground
from turnstile.common.broker.topology import pool_queue

_GRANTED = """
SELECT execution_id, attempt FROM slot
WHERE claimed_at IS NULL AND finished_at IS NULL
  AND execution_id = (SELECT id FROM execution WHERE metadata ->> 'mark' = $1)
"""


@dataclass(slots=True, kw_only=True)
class Puppet:
    """One worker id in the pool of puppets. It acts for as long as the armed process lives."""

    ground: Ground
    worker_id: str = field(default_factory=lambda: f"puppet {uuid4()}")

    async def register(self, *, lease_seconds: float) -> None:
        """Be a live worker for so long."""
        await self.ground.connection.execute(
            "SELECT turnstile.register_worker($1, 'puppet', 'localhost', 1, ARRAY['puppets'], 1, $2)",
            self.worker_id,
            lease_seconds,
        )

    async def claim(self, mark: str) -> tuple[int, int] | None:
        """Claim what bears this mark once it was granted; return id and attempt, None if it is too late."""
        connection = self.ground.connection

        async def is_granted() -> bool:
            return await connection.fetchrow(_GRANTED, mark) is not None

        if not await self.ground.while_armed(is_granted):
            return None
        row = await connection.fetchrow(_GRANTED, mark)
        assert row is not None
        execution_id, attempt = row["execution_id"], row["attempt"]
        verdict = await connection.fetchval(
            "SELECT verdict FROM turnstile.claim($1, $2, $3)", self.worker_id, [execution_id], [attempt]
        )
        assert verdict in ("claimed", "lease_over")
        return (execution_id, attempt) if verdict == "claimed" else None

    async def lose_offer(self, mark: str) -> None:
        """Take the offers of its pool, among them that of what bears this mark, and forget them."""
        connection = self.ground.connection

        async def is_granted() -> bool:
            return await connection.fetchrow(_GRANTED, mark) is not None

        async def is_empty() -> bool:
            return await self.ground.purge(pool_queue("puppets")) > 0

        if await self.ground.while_armed(is_granted):
            await self.ground.while_armed(is_empty)

    async def finish(self, execution_id: int, attempt: int) -> None:
        """Report the end, and tell nobody."""
        verdict = await self.ground.connection.fetchval(
            "SELECT verdict FROM turnstile.finish($1, $2, $3, '{completed}', '{null}', '{null}', '{null}',"
            " '{null}', '{null}')",
            self.worker_id,
            [execution_id],
            [attempt],
        )
        assert verdict == "applied"
