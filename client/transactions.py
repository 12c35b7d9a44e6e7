"""Submits executions inside a transaction of the caller's own database session.

In: a session or connection of SQLAlchemy, SQLModel, psycopg, Django or asyncpg on Turnstile's database. Out:
the id of the request, by which the execution is found once the transaction is committed. Nothing is committed
here, and neither the broker nor the executor is needed: what is rolled back was never submitted (P5).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Unpack
from uuid import UUID

from turnstile.client.errors import Rejected
from turnstile.client.requests import Options, Request, check_request, traceparent_here
from turnstile.common.requests import PARAMETERS_BYTES_MAX, json_text

_TYPES: Final = {
    "action_ref": "text",
    "parameters": "jsonb",
    "idempotency_key": "text",
    "concurrency_key": "text",
    "priority": "integer",
    "run_at": "timestamptz",
    "delay": "float8",
    "timeout": "float8",
    "ttl": "float8",
    "callback_url": "text",
    "metadata": "jsonb",
    "traceparent": "text",
    "singleton": "jsonb",
}
_SECONDS: Final = ("delay", "timeout", "ttl")
_REFUSAL: Final = re.compile(r"(unknown_action|invalid_parameters|invalid_message|too_large): ([^\n]*)")
_INVALID_PARAMETER_VALUE: Final = "22023"


def submit_in(
    session: Any,
    action_ref: str,
    parameters: Mapping[str, object] | None = None,
    **options: Unpack[Options],
) -> UUID:
    """Submit an execution if and when the transaction of `session` commits; return the id of the request.

    `session` is a Session or Connection of SQLAlchemy or SQLModel, or any DB-API connection of PostgreSQL:
    that of psycopg, or `django.db.connection`. Raises Rejected, after which the transaction has to be rolled
    back like after any failed statement, and the errors of the session's own library.
    """
    values = _values(Request(action_ref=action_ref, parameters=parameters or {}, **options))
    with _refusals():
        if _library(session) == "sqlalchemy":
            return _request_id(session.execute(_clause(), values).scalar_one())
        with session.cursor() as cursor:
            cursor.execute(_statement(_named), values)
            return _request_id(cursor.fetchone()[0])


async def submit_in_async(
    session: Any,
    action_ref: str,
    parameters: Mapping[str, object] | None = None,
    **options: Unpack[Options],
) -> UUID:
    """Do what `submit_in` does, in a session with an event loop.

    `session` is an AsyncSession or AsyncConnection of SQLAlchemy or SQLModel, an AsyncConnection of psycopg,
    or a connection of asyncpg.
    """
    values = _values(Request(action_ref=action_ref, parameters=parameters or {}, **options))
    with _refusals():
        match _library(session):
            case "sqlalchemy":
                return _request_id((await session.execute(_clause(), values)).scalar_one())
            case "asyncpg":
                numbers = {name: number for number, name in enumerate(values, 1)}
                statement = _statement(lambda name: f"${numbers[name]}")
                return _request_id(await session.fetchval(statement, *values.values()))
            case _:
                async with session.cursor() as cursor:
                    await cursor.execute(_statement(_named), values)
                    return _request_id((await cursor.fetchone())[0])


def _values(request: Request) -> dict[str, object]:
    """Return the arguments of `turnstile.submit`, in its order. Raises Rejected."""
    checked = check_request(request, parameters_bytes_max=PARAMETERS_BYTES_MAX)
    return {
        "action_ref": checked.action_ref,
        "parameters": json_text(checked.parameters),
        "idempotency_key": checked.idempotency_key,
        "concurrency_key": checked.concurrency_key,
        "priority": request.priority,
        "run_at": checked.run_at,
        "delay": checked.delay,
        "timeout": checked.timeout,
        "ttl": checked.ttl,
        "callback_url": checked.callback_url,
        "metadata": json_text(checked.metadata),
        "traceparent": request.traceparent or traceparent_here(),
        "singleton": None if checked.singleton is None else checked.singleton.model_dump_json(),
    }


def _statement(placeholder: Callable[[str], str]) -> str:
    arguments = []
    for name, type_name in _TYPES.items():
        value = f"CAST({placeholder(name)} AS {type_name})"
        arguments.append(f"{name} => " + (f"make_interval(secs => {value})" if name in _SECONDS else value))
    return f"SELECT turnstile.submit({', '.join(arguments)})"


def _named(name: str) -> str:
    return f"%({name})s"


def _clause() -> Any:
    from sqlalchemy import text  # noqa: PLC0415  (imported already by the application)

    return text(_statement(lambda name: f":{name}"))


def _library(session: object) -> str:
    """Return the top-level package of the class that a session is of, or inherits from."""
    packages = {each.__module__.partition(".")[0] for each in type(session).__mro__}
    return next((name for name in ("sqlalchemy", "asyncpg") if name in packages), "")


def _request_id(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise Rejected for a refusal of the database, which each library reports in an error of its own."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            # asyncpg and psycopg have `sqlstate`, psycopg2 has `pgcode`; SQLAlchemy wraps their errors.
            state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
            found = _REFUSAL.search(str(cause)) if state == _INVALID_PARAMETER_VALUE else None
            if found is not None:
                raise Rejected(found[1], found[2]) from error
            cause = getattr(cause, "orig", None) or cause.__cause__
        raise
