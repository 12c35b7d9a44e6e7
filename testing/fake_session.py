"""A database session without a database, for code that submits in its own transaction.

In: `submit_in` and `submit_in_async`, of actions or by name, with this session. Out: what was submitted, once
the session commits; nothing after a rollback. What else the code does with the session is done by the session
of the application that it stands for, if the test gives one.
"""

import json
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from inspect import isawaitable
from typing import Any, Self
from uuid import UUID, uuid4

Submission = tuple[UUID, dict[str, Any]]


class FakeSession:
    """Made by `FakeClient.session`; in a `with` or `async with` block it commits at the end."""

    def __init__(self, submit: Callable[[UUID, dict[str, Any]], None], session: Any = None) -> None:
        self._submit = submit
        self._session = session
        self._pending: list[Submission] = []

    def cursor(self) -> "_Cursor":
        """Return what `submit_in` and `submit_in_async` execute their statement with."""
        return _Cursor(self._pending)

    def commit(self) -> Any:
        """Commit, and submit what was submitted in the transaction; await it where the session is async."""
        return self._ended(None if self._session is None else self._session.commit(), self._pending[:])

    def rollback(self) -> Any:
        """Forget what was submitted in the transaction; await it where the session is async."""
        return self._ended(None if self._session is None else self._session.rollback(), [])

    def __getattr__(self, name: str) -> Any:
        if self._session is None:
            raise AttributeError(
                f"a fake session without the session of the application has no {name!r}; "
                "give it one: fake.session(session)"
            )
        return getattr(self._session, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.commit() if kind is None else self.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await (self.commit() if kind is None else self.rollback())

    def _ended(self, done: Any, submitted: list[Submission]) -> Any:
        if isawaitable(done):
            return self._ended_later(done, submitted)
        self._pending.clear()
        for request_id, body in submitted:
            self._submit(request_id, body)
        return _Done()

    async def _ended_later(self, done: Any, submitted: list[Submission]) -> None:
        await done
        self._ended(None, submitted)


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class _Cursor:
    """Takes the statement of a submission, blocking or not."""

    def __init__(self, pending: list[Submission]) -> None:
        self._pending = pending
        self._request_id = uuid4()

    def execute(self, statement: str, values: Mapping[str, Any]) -> _Done:
        body = {name: value for name, value in values.items() if value is not None}
        for name in ("parameters", "metadata"):
            body[name] = json.loads(body[name])
        if isinstance(run_at := body.get("run_at"), datetime):
            body["run_at"] = run_at.isoformat()
        body.pop("traceparent", None)
        self._pending.append((self._request_id, body))
        return _Done()

    def fetchone(self) -> "_Row":
        return _Row([self._request_id])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class _Row(list[UUID]):
    """A row, which an async cursor returns to an `await`."""

    def __await__(self) -> Generator[None, None, "_Row"]:
        yield from ()
        return self
