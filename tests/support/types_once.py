"""Composite types, which a server is asked for once instead of by every connection.

A connection asks for each type of the protocol when a result first contains it, with a query that costs the
server more than most calls of a test. Copies of one database have the same types under the same ids, and
no other type has these ids.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

_NOT_PREPARED_ANEW = SimpleNamespace(name="no query was made")


def ask_once_for_types(patched: pytest.MonkeyPatch, server_url: str) -> None:
    """Let the connections of this process to a server share what it answers."""
    parts = urlsplit(server_url)
    address = parts.hostname, parts.port
    ask: Any = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]
    answers: dict[frozenset[int], Any] = {}

    async def ask_once(connection: Any, type_ids: Sequence[int], seconds: float) -> Any:
        if connection._addr != address:
            return await ask(connection, type_ids, seconds)
        if (answer := answers.get(frozenset(type_ids))) is not None:
            return answer, _NOT_PREPARED_ANEW
        answer, statement = await ask(connection, type_ids, seconds)
        answers[frozenset(type_ids)] = answer
        return answer, statement

    patched.setattr(asyncpg.Connection, "_introspect_types", ask_once)
