"""The servers that all parts share, and a fresh database and vhost for each measurement."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from turnstile.localservers import BrokerServer, DatabaseServer, LocalServers
from turnstile.migrations import migrate

RABBITMQ: Final = "RabbitMQ"
POSTGRESQL: Final = "PostgreSQL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A migrated database and an empty vhost."""

    database_url: str
    amqp_url: str

    def environment(self) -> dict[str, str]:
        """Return what a service process must be told."""
        return {"TURNSTILE_DATABASE_URL": self.database_url, "TURNSTILE_AMQP_URL": self.amqp_url}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A PostgreSQL and a RabbitMQ server; of those on this machine also the process that leads each."""

    postgresql: DatabaseServer
    rabbitmq: BrokerServer
    pids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def over(cls, servers: LocalServers) -> Self:
        """Return the ground that private servers make."""
        return cls(
            postgresql=servers.postgresql,
            rabbitmq=servers.rabbitmq,
            pids={POSTGRESQL: [servers.postgresql.pid], RABBITMQ: [servers.rabbitmq.pid]},
        )

    @asynccontextmanager
    async def fresh(self, purpose: str) -> AsyncIterator[Place]:
        """Lend a place of its own for one measurement."""
        name = f"bench_{purpose}_{secrets.token_hex(4)}"
        place = Place(
            database_url=await asyncio.to_thread(self.postgresql.create_database, name),
            amqp_url=await asyncio.to_thread(self.rabbitmq.create_vhost, name),
        )
        try:
            await migrate(place.database_url)
            yield place
        finally:
            await asyncio.to_thread(self.rabbitmq.delete_vhost, name)
            await asyncio.to_thread(self.postgresql.drop_database, name)
