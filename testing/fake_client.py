"""A client without servers: it records what an application submits, and plays the outcomes of a test.

In: submissions, of actions or by name. Out: handles whose executions end at once, with `None` as their result
unless the test says otherwise. It is a `Client` whose HTTP API is answered in this process, so requests are
checked and answers are read by the same code as with a server.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

import httpx
from pydantic_core import to_jsonable_python

from turnstile.client import Client
from turnstile.client.default import use_client
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.fields import PRIORITY_DEFAULT
from turnstile.common.requests import CheckedRequest, read_request, request_hash
from turnstile.testing.fake_session import FakeSession
from turnstile.worker.progress import checked_progress

_URL: Final = "http://127.0.0.1:1"
"""Never connected to."""
_EQUAL: Final = frozenset({"action_ref", "idempotency_key", "concurrency_key", "priority"})
_FILTERS: Final = _EQUAL | {"status", "metadata", "limit", "cursor"}
_ONE: Final = re.compile(r"/api/v1/executions/(\d+)(/cancel)?")


@dataclass(slots=True, kw_only=True)
class Recorded:
    """One submission, and what became of it."""

    id: int
    action_ref: str
    parameters: dict[str, Any]
    request: CheckedRequest
    """Everything that was submitted: priority, metadata, keys, times."""
    request_id: UUID | None = None
    """What `submit_in` returned; None for other submissions."""
    status: Status = Status.QUEUED
    result: Any = None
    error: dict[str, str] | None = None
    progress: dict[str, Any] | None = None
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class FakeClient(Client):
    """A client to give to the code under test, or to all of it with `with FakeClient() as client:`."""

    def __init__(self) -> None:
        # A token of its own: that of the environment is not read.
        super().__init__(http_url=_URL, token="fake")
        self.submitted: list[Recorded] = []
        """All submissions, in order."""
        self._outcomes: dict[str, Callable[[Recorded], None]] = {}
        self._guard = threading.Lock()
        api = self._client._api
        api._connection = self._connection  # type: ignore[method-assign]
        api._http = self._connection()
        self._used = use_client(None)

    def __enter__(self) -> "FakeClient":
        """Start it, and use it for all actions that this process submits."""
        super().__enter__()
        self._used = use_client(self)
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop it; actions are submitted as before."""
        self._used.__exit__(*error)
        super().__exit__(*error)

    def completes(self, action_ref: str, result: object = None) -> None:
        """Let executions of this action complete with this result, a value that JSON can represent."""
        value = to_jsonable_python(result)
        self._outcomes[action_ref] = lambda one: _end(one, Status.COMPLETED, value)

    def fails(self, action_ref: str, message: str, *, error_type: str = "PermanentError") -> None:
        """Let executions of this action fail with this error."""
        self._outcomes[action_ref] = lambda one: _end(
            one, Status.FAILED, error={"type": error_type, "message": message}
        )

    def holds(self, action_ref: str) -> None:
        """Let executions of this action stay queued, until `complete` or `fail` ends them."""
        self._outcomes[action_ref] = lambda _: None

    def complete(self, execution_id: int, result: object = None) -> None:
        """End an execution that is held."""
        _end(self._one(execution_id), Status.COMPLETED, to_jsonable_python(result))

    def fail(self, execution_id: int, message: str, *, error_type: str = "PermanentError") -> None:
        """Let an execution that is held fail."""
        _end(self._one(execution_id), Status.FAILED, error={"type": error_type, "message": message})

    def progress(
        self, execution_id: int, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Let an execution that is held run, and show this progress, as `context.progress` reports it."""
        one, reported = self._one(execution_id), checked_progress(done, total, message)
        assert not is_terminal(one.status), f"execution {one.id} has ended"
        one.status = Status.RUNNING
        one.progress = {**asdict(reported), "updated_at": datetime.now(UTC).isoformat()}

    def session(self, session: Any = None) -> FakeSession:
        """Return a session for `submit_in` and `submit_in_async`: its commit submits, its rollback does not.

        `session` is that of the application, which does everything else; without it, nothing else works.
        """

        def submit(request_id: UUID, body: dict[str, Any]) -> None:
            with self._guard:
                self._admit(body, request_id)

        return FakeSession(submit, session)

    def _one(self, execution_id: int) -> Recorded:
        return self.submitted[execution_id - 1]

    def _connection(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.MockTransport(self._answer), base_url=f"{_URL}/api/v1", trust_env=False
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path, found = request.url.path, _ONE.fullmatch(request.url.path)
        with self._guard:
            match request.method:
                case "POST" if path == "/api/v1/executions":
                    items = [self._admit(body) for body in _submitted(request)]
                    return httpx.Response(HTTPStatus.ACCEPTED, json={"items": items})
                case "GET" if path == "/api/v1/executions":
                    return self._page(request.url.params)
                case "GET" | "POST" if found and int(found[1]) <= len(self.submitted):
                    one = self._one(int(found[1]))
                    if request.method == "GET" and not found[2]:
                        return httpx.Response(HTTPStatus.OK, json=_shown(one))
                    if request.method == "POST" and found[2]:
                        return _cancelled(one)
        return _problem(Code.NOT_FOUND, f"the fake client does not answer {request.method} {path}")

    def _admit(self, body: Any, request_id: UUID | None = None) -> dict[str, Any]:
        try:
            request = read_request(body)
        except Refusal as refusal:
            return {"code": refusal.code, "detail": refusal.message}
        if (known := self._known(request)) is not None:
            if request_hash(known.request) == request_hash(request):
                return {"id": known.id, "status": known.status, "position": None, "duplicate": True}
            detail = (
                f"idempotency_key: {request.idempotency_key!r} already names execution {known.id}, "
                "which is a different request; use another key, or repeat the same request"
            )
            return {"code": Code.IDEMPOTENCY_CONFLICT, "detail": detail}
        one = Recorded(
            id=len(self.submitted) + 1,
            action_ref=request.action_ref,
            parameters=dict(request.parameters),
            request=request,
            request_id=request_id,
        )
        self.submitted.append(one)
        play = self._outcomes.get(one.action_ref)
        if play is None:
            _end(one, Status.COMPLETED)
        else:
            play(one)
        return {"id": one.id, "status": "queued", "position": 1, "duplicate": False}

    def _known(self, request: CheckedRequest) -> Recorded | None:
        key = request.idempotency_key
        return next((one for one in self.submitted if key and one.request.idempotency_key == key), None)

    def _page(self, query: httpx.QueryParams) -> httpx.Response:
        unknown = set(query) - _FILTERS
        if unknown:
            names = ", ".join(sorted(unknown))
            return _problem(Code.UNKNOWN_FIELD, f"the fake client does not list by {names}")
        before, limit = int(query.get("cursor", len(self.submitted) + 1)), int(query.get("limit", 100))
        found = [one for one in reversed(self.submitted[: before - 1]) if _matches(one, query)]
        cursor = str(found[limit - 1].id) if len(found) > limit else None
        return httpx.Response(
            HTTPStatus.OK, json={"items": [_shown(one) for one in found[:limit]], "next_cursor": cursor}
        )


def _matches(one: Recorded, query: httpx.QueryParams) -> bool:
    """Return whether all given filters hold."""
    shown = {name: str(value) for name, value in _shown(one).items() if value is not None}
    pairs = (pair.partition(":") for pair in query.get_list("metadata"))
    return (
        all(shown.get(name) == query[name] for name in _EQUAL & set(query))
        and (not (statuses := query.get_list("status")) or one.status in statuses)
        and all(str(one.request.metadata.get(key)) == value for key, _, value in pairs)
    )


def _end(one: Recorded, status: Status, result: object = None, error: dict[str, str] | None = None) -> None:
    assert not is_terminal(one.status), f"execution {one.id} has ended"
    one.status, one.result, one.error = status, result, error


def _cancelled(one: Recorded) -> httpx.Response:
    if is_terminal(one.status):
        return _problem(Code.ALREADY_TERMINAL, f"execution {one.id} is {one.status}", HTTPStatus.CONFLICT)
    _end(one, Status.CANCELLED, error={"type": "Cancelled", "message": ""})
    return httpx.Response(HTTPStatus.ACCEPTED, json={"id": one.id, "status": one.status})


def _shown(one: Recorded) -> dict[str, Any]:
    at = one.created_at.isoformat()
    return {
        "id": one.id,
        "action_ref": one.action_ref,
        "status": one.status,
        "attempt": 1 if is_terminal(one.status) else 0,
        "parameters": one.parameters,
        "metadata": dict(one.request.metadata),
        "priority": one.request.priority or PRIORITY_DEFAULT,
        "progress": one.progress,
        "concurrency_key": one.request.concurrency_key,
        "idempotency_key": one.request.idempotency_key,
        "result": one.result,
        "error": one.error,
        "created_at": at,
        "queued_at": at,
        "completed_at": at if is_terminal(one.status) else None,
    }


def _submitted(request: httpx.Request) -> list[Any]:
    """Return the requests without their trace contexts, which the fake client does not keep."""
    return [
        {name: each[name] for name in each if name != "traceparent"} for each in json.loads(request.content)
    ]


def _problem(code: Code, detail: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> httpx.Response:
    return httpx.Response(
        status, json={"type": "about:blank", "status": status, "code": code, "detail": detail}
    )
