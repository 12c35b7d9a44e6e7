"""Databases of a PostgreSQL server that is reached by URL, ours or anyone's.

In: the URL of a server and of a role that may create databases. Out: URLs of fresh databases, copied from a
template where one is named. Synchronous, and callable while an event loop runs in the same thread.
`postgresql.py` adds the server itself.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

_STATEMENT_SECONDS = 60.0
_MAINTENANCE_DATABASE = "postgres"


class DatabaseServer:
    """A PostgreSQL server on which databases come and go; `server_url` may name any database."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url

    def url(self, database: str = _MAINTENANCE_DATABASE) -> str:
        """Return the URL of one database, which need not exist."""
        return urlunsplit(urlsplit(self._server_url)._replace(path="/" + quote(database, safe="")))

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` (to which nobody is connected), and return its URL."""
        # The default strategy, WAL_LOG, suits a small template: FILE_COPY would cost two checkpoints.
        copied = f" TEMPLATE {_quoted(template)}" if template else ""
        self.execute(f"CREATE DATABASE {_quoted(name)}{copied}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending the sessions in it; without effect where it does not exist."""
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def version(self) -> str:
        """Return the version of the server, like `15.18`."""
        said: str = self._answer("SHOW server_version", _MAINTENANCE_DATABASE)
        return said.split(maxsplit=1)[0]

    def execute(self, statement: str, database: str = _MAINTENANCE_DATABASE) -> None:
        """Run one statement outside a transaction block."""
        self._answer(statement, database)

    def _answer(self, statement: str, database: str) -> Any:
        # asyncio.run refuses to nest, and a fixture may be called from within a test's loop.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="database-administration") as thread:
            return thread.submit(asyncio.run, _first_value(self.url(database), statement)).result()


async def _first_value(url: str, statement: str) -> Any:
    """Run a statement, and return the first value that it returns, if any."""
    async with asyncio.timeout(_STATEMENT_SECONDS):
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
