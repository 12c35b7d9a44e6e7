"""The servers that all contestants share, and a fresh place on them for each session.

In: `LocalServers`, and a Redis server beside them where there is one. Out: a place: a database, a vhost and a
prefix of keys of its own, and what the environment of a contestant's processes says of them.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.job import AMQP_URL, DATABASE_URL, REDIS_PREFIX, REDIS_URL
from benchmarks.peers.redis_server import RedisServer
from turnstile.localservers import LocalServers, LocalServersError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one session runs."""

    environment: Mapping[str, str]
    """What its processes must be told."""
    scratch: Path
    """Goes with the servers, even where we are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """All servers of a run."""

    local: LocalServers
    redis: RedisServer | None
    why_no_redis: str = ""

    def versions(self) -> dict[str, str]:
        """Return the version of each server; asks them, so call it in a thread."""
        found = self.local.versions()
        return found | ({"Redis": self.redis.version()} if self.redis else {})

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Lend a place of its own for one session."""
        name = f"peers_{secrets.token_hex(4)}"
        database_url = await asyncio.to_thread(self.local.postgresql.create_database, name)
        amqp_url = await asyncio.to_thread(self.local.rabbitmq.create_vhost, name)
        try:
            environment = {
                DATABASE_URL: database_url,
                AMQP_URL: amqp_url,
                REDIS_PREFIX: name,
                "TURNSTILE_DATABASE_URL": database_url,
                "TURNSTILE_AMQP_URL": amqp_url,
                **({REDIS_URL: self.redis.url} if self.redis else {}),
            }
            yield Place(environment=environment, scratch=self.local.folder)
        finally:
            await asyncio.to_thread(self.local.rabbitmq.delete_vhost, name)
            await asyncio.to_thread(self.local.postgresql.drop_database, name)


@contextmanager
def all_servers() -> Iterator[Servers]:
    """Start PostgreSQL and RabbitMQ, and Redis where it can be had; stop them at the end."""
    with LocalServers.start(durable=True) as local:
        redis, why = None, ""
        try:
            redis = RedisServer.start(local.folder / "redis")
        except LocalServersError as error:
            why = " ".join(str(error).split())
        try:
            yield Servers(local=local, redis=redis, why_no_redis=why)
        finally:
            if redis is not None:
                redis.stop()
