"""`submit_in`: one call for each library's session; committed with it, rolled back with it (P5)."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import django
import psycopg
import pytest
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from turnstile import Context, action
from turnstile.client import Rejected
from turnstile.client.transactions import submit_in, submit_in_async

Rows: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_DEFINE = """
INSERT INTO ledger.definition (kind, name, body, created_at, updated_at)
VALUES ('action', 'a', '{}', now(), now())
"""
_OPTIONS: dict[str, Any] = {
    "priority": 2,
    "timeout": "5m",
    "ttl": 3600,
    "delay": "1m",
    "metadata": {"order": "A-17"},
}


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """A session that looks at the rows, in a database that knows one action."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_DEFINE)
        yield connection
    finally:
        await connection.close()


def _engine(url: str) -> Engine:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Session]:
    with Session(_engine(url)) as session, session.begin():
        yield session


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Any]:
    with _engine(url).begin() as connection:
        yield connection


@contextmanager
def psycopg_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    if not settings.configured:
        settings.configure()
        django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    connections.__dict__["settings"] = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "PASSWORD": parts.get("password", ""),
                "HOST": parts["host"],
                "PORT": parts["port"],
            }
        }
    )
    try:
        # As documented: the connection of the thread, in a block of its own.
        with transaction.atomic():
            yield django.db.connection
    finally:
        connections["default"].close()
        del connections["default"]


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "opened", [sqlalchemy_session, sqlalchemy_connection, psycopg_connection, django_connection]
)
async def test_a_blocking_session_submits_with_its_commit(database_url: str, rows: Rows, opened: Any) -> None:

    def application() -> UUID:
        with suppress(ZeroDivisionError), opened(database_url) as session:
            submit_in(session, "a", {"number": 0})
            raise ZeroDivisionError
        with opened(database_url) as session:
            request_id = submit_in(session, "a", {"customer": "Ø'\";--%s:x"}, **_OPTIONS)
        with pytest.raises(Rejected) as refused, opened(database_url) as session:
            submit_in(session, "no.such")
        assert (refused.value.code, refused.value.message[:25]) == (
            "unknown_action",
            "action_ref: there is no a",
        )
        return request_id

    request_id = await asyncio.to_thread(application)
    await _check(rows, request_id)


@pytest.mark.parametrize("opened", [sqlalchemy_async_session, psycopg_async_connection, asyncpg_connection])
async def test_a_session_with_an_event_loop_submits_with_its_commit(
    database_url: str, rows: Rows, opened: Any
) -> None:
    with suppress(ZeroDivisionError):
        async with opened(database_url) as session:
            await submit_in_async(session, "a", {"number": 0})
            raise ZeroDivisionError
    async with opened(database_url) as session:
        request_id = await submit_in_async(session, "a", {"customer": "Ø'\";--%s:x"}, **_OPTIONS)
    with pytest.raises(Rejected) as refused:
        async with opened(database_url) as session:
            await submit_in_async(session, "no.such")
    assert refused.value.code == "unknown_action"
    await _check(rows, request_id)


@action("a")
def declared(context: Context, number: int, customer: str = "") -> int:
    return number


async def test_an_action_submits_its_checked_parameters(database_url: str, rows: Rows) -> None:
    named = declared.with_options(priority=2)

    def blocking() -> UUID:
        with psycopg_connection(database_url) as session:
            with pytest.raises(Rejected, match="number"):
                named.submit_in(session, number="seven")  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="custmer"):
                named.submit_in(session, 7, custmer="x")  # type: ignore[call-overload]
            # Nothing was sent, so the transaction goes on.
            return named.submit_in(session, 7, customer="x")

    request_ids = [await asyncio.to_thread(blocking)]
    async with sqlalchemy_async_session(database_url) as session:
        request_ids.append(await named.submit_in_async(session, number=8))
    found = await rows.fetch("SELECT * FROM ledger.inbox ORDER BY id")
    assert [row["command_id"] for row in found] == request_ids
    assert [_requested(row) for row in found] == [
        {"action_ref": "a", "parameters": {"number": 7, "customer": "x"}, "metadata": {}, "priority": 2},
        {"action_ref": "a", "parameters": {"number": 8}, "metadata": {}, "priority": 2},
    ]


async def _check(rows: Rows, request_id: UUID) -> None:
    (found,) = await rows.fetch("SELECT * FROM ledger.inbox")
    assert found["command_id"] == request_id
    assert _requested(found) == {
        "action_ref": "a",
        "parameters": {"customer": "Ø'\";--%s:x"},
        "metadata": {"order": "A-17"},
        "priority": 2,
        "timeout": 300,
        "ttl": 3600,
        "delay": 60,
    }


def _requested(row: asyncpg.Record) -> dict[str, Any]:
    """Return what was asked for, as one body."""
    documents = {name: json.loads(row[name]) for name in ("parameters", "metadata")}
    return {**json.loads(row["body"]), **documents}


def test_a_wrong_request_is_refused_before_the_database_sees_it() -> None:
    with pytest.raises(Rejected, match="priority"):
        submit_in(object(), "a", priority=9)
    with pytest.raises(Rejected, match="timeout"):
        submit_in(object(), "a", timeout="soon")
    with pytest.raises(Rejected, match="not JSON"):
        submit_in(object(), "a", {"x": float("nan")})
