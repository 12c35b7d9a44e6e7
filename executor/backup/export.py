"""Writes the database to a file with pg_dump.

In: the database, and the name of a file that does not exist. Out: a complete file, or none. The summary reads
the snapshot that is dumped, so its numbers are those of the file.
"""

import os
from pathlib import Path
from typing import Final

import asyncpg

from turnstile.common.urls import host_urls
from turnstile.executor.backup.programs import connect_as, dump, find_program, server_version
from turnstile.executor.backup.restored import RestoredState
from turnstile.executor.sql import statements

_STATEMENTS: Final = statements("backup/restored.sql")
_UNFINISHED: Final = ".unfinished"


async def export(url: str, file: Path, *, postgresql_bin: str = "") -> RestoredState:
    """Dump the database into `file`, which must not exist; return what the dump contains.

    Raises OSError, ProgramFailed, or an error of the driver; then there is no `file`.
    """
    unfinished = file.with_name(file.name + _UNFINISHED)
    # Only this account may read it: it holds the parameters and results of all executions.
    os.close(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
    try:
        state = await _dump(url, unfinished, postgresql_bin)
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return state


async def _dump(url: str, file: Path, postgresql_bin: str) -> RestoredState:
    *others, last = host_urls(url)
    for host_url in others:
        try:
            connection = await connect_as("turnstile export", host_url)
        except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError):
            continue
        break
    else:
        host_url, connection = last, await connect_as("turnstile export", last)
    try:
        program = await find_program(
            "pg_dump", folder=postgresql_bin, server_version=await server_version(connection)
        )
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            snapshot: str = await connection.fetchval("SELECT pg_export_snapshot()")
            row = await connection.fetchrow(_STATEMENTS["state"])
            assert row is not None
            await dump(program, host_url, file=file, snapshot=snapshot)
        return RestoredState(**row)
    finally:
        await connection.close()
