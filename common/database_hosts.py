"""Finds the host of the database that will do, among those of its URL.

In: the URL. Out: connections, to the host that did last, else to the next. The driver goes through several
hosts by itself, but within one time limit: a host that is switched off, and so refuses nothing, would use
it up each time, and the standby that was promoted would never be asked.
"""

from typing import Any

import asyncpg

from turnstile.common.database_url import host_urls


class DatabaseHosts:
    """The hosts of one database, the likeliest first."""

    def __init__(self, url: str, *, connect_seconds: float) -> None:
        """`connect_seconds`: how long each host may take."""
        self._urls = host_urls(url)
        self._connect_seconds = connect_seconds

    async def connect(self, *_: Any, **options: Any) -> Any:
        """Connect to the first host that will do; raise what the last one raised.

        A pool says None where it might say a URL.
        """
        *others, last = self._urls
        for url in others:
            try:
                return await self._connect(url, options)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError):
                continue
        return await self._connect(last, options)

    async def _connect(self, url: str, options: dict[str, Any]) -> Any:
        # Beforehand: whoever waits for this may give up first, and must not wait here again.
        self._move(url, to_front=False)
        connection = await asyncpg.connect(url, timeout=self._connect_seconds, **options)
        self._move(url, to_front=True)
        return connection

    def _move(self, url: str, *, to_front: bool) -> None:
        others = [other for other in self._urls if other != url]
        self._urls = [url, *others] if to_front else [*others, url]
