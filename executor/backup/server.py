"""One session of a database server for backups, and its version."""

from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from turnstile.common.database import DatabaseHosts

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]


async def connect_as(application_name: str, url: str) -> "Connection":
    """Connect to the first host that accepts; raises the error of the last one."""
    hosts = DatabaseHosts(url, connect_seconds=10.0)
    settings = {"application_name": application_name}
    connection: Connection = await hosts.connect(server_settings=settings)
    return connection


async def server_version(connection: "Connection") -> int:
    """Return the major version of the server, like 16."""
    return int(await connection.fetchval("SHOW server_version_num")) // 10_000
