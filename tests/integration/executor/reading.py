"""Reading what stands in the tables, for tests of the statements."""

from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from turnstile.executor.decisions import Grants

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection


class Reading:
    """The tables, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def status(self, execution_id: int) -> str:
        return str((await self.execution(execution_id))["status"])

    async def statuses(self, *execution_ids: int) -> list[str]:
        return [await self.status(i) for i in execution_ids]

    async def execution(self, execution_id: int) -> asyncpg.Record:
        row = await self.connection.fetchrow("SELECT * FROM execution WHERE id = $1", execution_id)
        assert row is not None
        return row

    async def line(self) -> list[int]:
        return await self.column("SELECT execution_id FROM waiting ORDER BY queue_id, execution_id")

    async def held(self) -> list[int]:
        return await self.column("SELECT execution_id FROM slot ORDER BY execution_id")

    async def slot_numbers(self) -> list[int | None]:
        return await self.column("SELECT slot_number FROM slot ORDER BY slot_number")

    async def untold(self) -> list[int]:
        return await self.column("SELECT execution_id FROM untold_end ORDER BY 1")

    async def attempts(self, execution_id: int) -> list[tuple[int, str, str]]:
        rows = await self.connection.fetch(
            "SELECT attempt, worker_id, outcome FROM attempt WHERE execution_id = $1 ORDER BY 1", execution_id
        )
        return [(row["attempt"], row["worker_id"], row["outcome"]) for row in rows]

    async def queue(self, ref: str = "a", key: str = "") -> asyncpg.Record:
        row = await self.connection.fetchrow(
            "SELECT q.* FROM action_queue q JOIN action a ON a.id = q.action_id"
            " WHERE a.ref = $1 AND q.concurrency_key = $2", ref, key,
        )  # fmt: skip
        assert row is not None
        return row

    async def column(self, query: str, *arguments: object) -> list[Any]:
        return [row[0] for row in await self.connection.fetch(query, *arguments)]


def ids_in(grants: Grants) -> list[int]:
    return [grant.execution_id for grant in grants.granted]
