"""Commands as rows of the inbox, in both directions, and requests from outside as commands.

HTTP and the command line store what they have checked; the leader reads it and trusts it. What
`turnstile.submit` stored is read like the body of `execution.requested`, so all ways of submitting refuse
alike, and equal requests have equal hashes.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, assert_never
from uuid import UUID

from msgspec import structs
from pydantic_core import from_json, to_json

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import (
    PARAMETERS_BYTES_MAX,
    CheckedRequest,
    read_json,
    read_request,
    read_traceparent,
    request_bytes_max,
    request_hash,
)
from turnstile.executor.leader.ports import (
    CancelExecutions,
    CancelRequest,
    Command,
    DefinitionCommand,
    InboxRow,
    RefusedRequest,
    Request,
)

if TYPE_CHECKING:
    import asyncpg

_DOCUMENTS: Final = ("parameters", "metadata")
_NOT_STORED: Final = frozenset({*_DOCUMENTS, "is_submission"})
_DEFAULTS: Final = {
    each.name: each.default
    for each in structs.fields(Request)
    if each.name not in ("action_ref", "request_hash")
}
_TAG_BYTES: Final = 12


class CommandColumns(NamedTuple):
    """A command as its row of the inbox, beside its id. JSON is text."""

    kind: str
    is_bulk: bool
    body: str
    parameters: str | None = None
    metadata: str | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.body) + len(self.parameters or "") + len(self.metadata or "")


def columns_of(command: Command) -> CommandColumns:
    """Return a command as a row. A RefusedRequest is none: only `turnstile.submit` stores what is unread."""
    match command:
        case Request():
            body = {
                name: value
                for name in command.__struct_fields__
                if name not in _NOT_STORED
                and (value := getattr(command, name)) != _DEFAULTS.get(name, _DEFAULTS)
            }
            body["request_hash"] = str(command.request_hash)
            metadata = None if command.metadata is None else command.metadata.decode()
            return CommandColumns("request", False, _text(body), command.parameters.decode(), metadata)
        case CancelRequest():
            return CommandColumns("cancel", False, _text(_given(command)))
        case CancelExecutions():
            return CommandColumns("cancels", len(command.execution_ids) > 1, _text(_given(command)))
        case DefinitionCommand():
            return CommandColumns("definition", False, _text(_given(command)))
        case RefusedRequest():
            raise AssertionError("was never a command")
    assert_never(command)


def _given(command: CancelRequest | CancelExecutions | DefinitionCommand) -> Mapping[str, Any]:
    return {each.name: getattr(command, each.name) for each in fields(command)}


def _text(value: object) -> str:
    return to_json(value).decode()


RefusalOf: TypeAlias = Callable[[str, Any], tuple[Code, str] | None]
"""Returns why parameters do not fit the schemas of an action, or None."""


def command_of(
    row: "asyncpg.Record",
    parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
    refusal_of: RefusalOf | None = None,
) -> InboxRow:
    """Return a row of the inbox as a command. `refusal_of` checks its parameters."""
    body: Command
    if row["kind"] == "submission":
        body = _submission(row, parameters_bytes_max, refusal_of)
    else:
        given: dict[str, Any] = json.loads(row["body"])
        match row["kind"]:
            case "request":
                given["request_hash"] = UUID(given["request_hash"])
                if "refusal" in given:
                    given["refusal"] = Code(given["refusal"][0]), given["refusal"][1]
                given |= {name: row[name].encode() for name in _DOCUMENTS if row[name] is not None}
                body = _checked(Request(**given), refusal_of)
            case "cancel":
                body = CancelRequest(**given)
            case "cancels":
                body = CancelExecutions(**given | {"execution_ids": tuple(given["execution_ids"])})
            case _:
                body = DefinitionCommand(**given)
    command_id = UUID(bytes=row["command_id"].bytes)
    return InboxRow(id=row["id"], command_id=command_id, body=body, cancelled=row["cancelled"])


def _checked(request: Request, refusal_of: RefusalOf | None) -> Request:
    """Check the parameters of a request, but not of a retry: they were accepted before."""
    if refusal_of is None or request.refusal is not None or request.retry_of is not None:
        return request
    refusal = refusal_of(request.action_ref, from_json(request.parameters))
    return request if refusal is None else structs.replace(request, refusal=refusal)


def _submission(
    row: "asyncpg.Record", parameters_bytes_max: int, refusal_of: RefusalOf | None
) -> Request | RefusedRequest:
    """Read what `turnstile.submit` stored like a message from outside."""
    bytes_max = request_bytes_max(parameters_bytes_max)
    if row["body"] is None:
        message = f"body: more than the {bytes_max} bytes that are accepted; send a reference"
        return RefusedRequest(code=Code.TOO_LARGE, message=message, body=None)
    parameters, metadata = row["parameters"].encode(), row["metadata"].encode()
    try:
        given = json.loads(row["body"])
        traceparent = read_traceparent({"traceparent": given.pop("traceparent", None)})
        given["parameters"] = read_json(parameters, bytes_max=bytes_max)
        given["metadata"] = read_json(metadata, bytes_max=bytes_max)
        requested = read_request(given, parameters_bytes_max=parameters_bytes_max)
    except Refusal as refusal:
        whole = b'{"request": %s, "parameters": %s, "metadata": %s}' % (
            row["body"].encode(), parameters, metadata,
        )  # fmt: skip
        return RefusedRequest(code=refusal.code, message=refusal.message, body=whole)
    request = request_of(requested, traceparent=traceparent, is_submission=True)
    unfit = None if refusal_of is None else refusal_of(requested.action_ref, requested.parameters)
    return request if unfit is None else structs.replace(request, refusal=unfit)


def request_of(
    requested: CheckedRequest,
    *,
    traceparent: str | None = None,
    may_be_urgent: bool = False,
    is_submission: bool = False,
) -> Request:
    """Return a checked request from outside as a command."""
    return Request(
        action_ref=requested.action_ref,
        parameters=requested.parameters_text,
        request_hash=request_hash(requested),
        concurrency_key=requested.concurrency_key,
        priority=requested.priority,
        may_be_urgent=may_be_urgent,
        run_at=None if requested.run_at is None else requested.run_at.timestamp(),
        delay_seconds=requested.delay,
        ttl_seconds=requested.ttl,
        timeout_seconds=requested.timeout,
        idempotency_key=requested.idempotency_key,
        callback_url=requested.callback_url,
        metadata=requested.metadata_text if requested.metadata else None,
        traceparent=traceparent,
        is_submission=is_submission,
    )


def definition_tag(body: Mapping[str, Any]) -> str:
    """Return the `ETag` of a stored definition: it changes with each field, and is that of its row."""
    content = json.dumps(_plain(body), sort_keys=True).encode()
    return f'"{hashlib.blake2b(content, digest_size=_TAG_BYTES).hexdigest()}"'


def _plain(value: Any) -> Any:
    """Return JSON as the database returns it: 5.0 and 5, or 1e22 and its digits, are one number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
