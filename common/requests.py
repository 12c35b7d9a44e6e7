"""Reads requests from outside: bytes in; a checked request, or a `Refusal` that names field and remedy, out.

No input raises anything else: not JSON, not UTF-8, NaN, a NUL character, any depth, any size. The request
listener, the HTTP API and the client share these checks, so all of them refuse alike.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.fields import PRIORITY_DEFAULT, SCHEDULE_KEY, check_ref
from turnstile.common.invalid_values import invalid_values, known_fields
from turnstile.common.json_limits import LEVELS_MAX, read_document
from turnstile.common.messages import SCHEMA_VERSION, ExecutionRequested, Singleton
from turnstile.common.nearest import did_you_mean

PARAMETERS_BYTES_MAX: Final = 256 * 1024
_ENVELOPE_BYTES_MAX: Final = 64 * 1024
_JSON_FIELDS: Final = ("parameters", "metadata")
_NAMED_MAX: Final = 5
"""Number of wrong fields that one refusal names at most."""
_EXPONENT: Final = re.compile(rb"e(?<=[0-9]e)[0-9]")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Model = TypeVar("Model", bound=BaseModel)


class CheckedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run an action, with all that was checked without knowing the action."""

    action_ref: str
    parameters: dict[str, Any]
    metadata: dict[str, Any]
    parameters_text: bytes
    """JSON, with the keys of every object in order."""
    metadata_text: bytes
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    priority: int | None = None
    """None: not given."""
    run_at: datetime | None = None
    delay: float | None = None
    timeout: float | None = None
    ttl: float | None = None
    callback_url: str | None = None
    singleton: Singleton | None = None


_EMPTY: Final = b"{}"
_NUL: Final = b"\\u0000"
_HASHED: Final = [
    (name, default, b',"%b":' % name.removesuffix("_text").encode())
    for name, default in (
        ("callback_url", None),
        ("concurrency_key", None),
        ("delay", None),
        ("metadata_text", _EMPTY),
        ("parameters_text", _EMPTY),
        ("priority", PRIORITY_DEFAULT),
        ("run_at", None),
        ("singleton", None),
        ("timeout", None),
        ("ttl", None),
    )
]
"""What changes the hash of a request beside its action: field, default, and what precedes the value."""
_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class _Plain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of most requests: `ExecutionRequested` accepts whatever fits this, with the same values."""

    action_ref: str
    parameters: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    idempotency_key: _Key | None = None
    concurrency_key: _Key | None = None
    priority: Literal[1, 2, 3, 4, 5] | msgspec.UnsetType = msgspec.UNSET
    timeout: float | str | None = None
    ttl: float | str | None = None
    run_at: None = None
    delay: None = None
    callback_url: None = None
    singleton: None = None


_PLAIN: Final = msgspec.json.Decoder(_Plain)
_NOT_PLAIN: Final = (msgspec.MsgspecError, ValueError, RecursionError, Refusal)
_is_ref: Final = lru_cache(maxsize=4096)(check_ref)


def read_json(body: bytes, *, bytes_max: int) -> Any:
    """Return the JSON value in `body`; raises Refusal for what is not plain, finite, bounded JSON."""
    if len(body) > bytes_max:
        raise Refusal(
            Code.TOO_LARGE,
            f"body: {len(body)} bytes, at most {bytes_max} are accepted; send a reference instead",
        )
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(
            Code.INVALID_MESSAGE, f"body: not JSON: {error}; expected an object like {_EXAMPLE}"
        ) from None
    if _may_be_unstorable(body):
        _check_storable(value)
    return value


_EXAMPLE: Final = '{"action_ref": "reports.render", "parameters": {}}'


def read_model(model: type[Model], value: Any) -> Model:
    """Return `value` as `model`; raises Refusal naming each wrong field."""
    if not isinstance(value, dict):
        raise Refusal(
            Code.INVALID_MESSAGE, f"body: {_kind(value)} is not an object; expected one like {_EXAMPLE}"
        )
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False), model) from None


def read_request(value: Any, *, parameters_bytes_max: int = PARAMETERS_BYTES_MAX) -> CheckedRequest:
    """Return a checked request from a JSON value, which becomes part of it."""
    given = _read_around_documents(value)
    if given.run_at is not None and given.delay is not None:
        raise Refusal(Code.INVALID_MESSAGE, "run_at, delay: give one of them")
    return CheckedRequest(
        action_ref=given.action_ref,
        parameters=given.parameters,
        metadata=given.metadata,
        parameters_text=document_text(given.parameters, "parameters", parameters_bytes_max),
        metadata_text=document_text(given.metadata, "metadata", parameters_bytes_max),
        idempotency_key=given.idempotency_key,
        concurrency_key=given.concurrency_key,
        priority=given.priority if "priority" in given.model_fields_set else None,
        run_at=given.run_at,
        delay=given.delay,
        timeout=given.timeout,
        ttl=given.ttl,
        callback_url=given.callback_url,
        singleton=given.singleton,
    )


def document_text(document: Mapping[str, Any], field: str, bytes_max: int) -> bytes:
    """Return a document as JSON text with the keys of every object in order; raises Refusal."""
    if not document:
        return _EMPTY
    text = msgspec.json.encode(document, order="sorted")
    if len(text) > bytes_max:
        text = to_json(document)
    elif _EXPONENT.search(text) is not None or text.count(b"[") + text.count(b"{") > LEVELS_MAX:
        try:
            # Numbers are written as they always were: stored hashes stay valid.
            text = to_json(read_document(text))
        except ValueError as error:
            raise Refusal(Code.INVALID_PARAMETERS, f"{field}: {error}") from None
    if len(text) > bytes_max:
        raise Refusal(
            Code.TOO_LARGE,
            f"{field}: {len(text)} bytes, at most {bytes_max} are accepted; send a reference",
        )
    return text


def _read_around_documents(value: Any) -> ExecutionRequested:
    """Check everything but the documents: they are JSON already, and may hold a million values."""
    documents = {}
    if isinstance(value, dict):
        documents = {field: value[field] for field in _JSON_FIELDS if isinstance(value.get(field), dict)}
    request = read_model(
        ExecutionRequested, {**value, **{field: {} for field in documents}} if documents else value
    )
    # As `model_copy` does, which costs as much as the check.
    vars(request).update(documents)
    return request


def read_requested_body(body: bytes, *, parameters_bytes_max: int = PARAMETERS_BYTES_MAX) -> CheckedRequest:
    """Return the checked request in the body of `execution.requested` or of one `POST /executions`."""
    bytes_max = request_bytes_max(parameters_bytes_max)
    try:
        return _read_plain(body, bytes_max, parameters_bytes_max)
    except _NOT_PLAIN:
        # Read again by what accepts everything that is allowed, and says what is not.
        value = read_json(body, bytes_max=bytes_max)
        return read_request(value, parameters_bytes_max=parameters_bytes_max)


def _read_plain(body: bytes, bytes_max: int, parameters_bytes_max: int) -> CheckedRequest:
    """Return a plain request; raises one of `_NOT_PLAIN` for any other."""
    if len(body) > bytes_max or _NUL in body:
        raise ValueError
    plain = _PLAIN.decode(body)
    _is_ref(plain.action_ref)
    if plain.idempotency_key is not None and plain.idempotency_key.startswith(SCHEDULE_KEY):
        raise ValueError
    return CheckedRequest(
        action_ref=plain.action_ref,
        parameters=plain.parameters,
        metadata=plain.metadata,
        parameters_text=document_text(plain.parameters, "parameters", parameters_bytes_max),
        metadata_text=document_text(plain.metadata, "metadata", parameters_bytes_max),
        idempotency_key=plain.idempotency_key,
        concurrency_key=plain.concurrency_key,
        priority=None if plain.priority is msgspec.UNSET else plain.priority,
        timeout=None if plain.timeout is None else parse_duration(plain.timeout),
        ttl=None if plain.ttl is None else parse_duration(plain.ttl),
    )


def request_bytes_max(parameters_bytes_max: int) -> int:
    """Return the maximum size of one request body; JSON may be written in twice the bytes."""
    return 2 * parameters_bytes_max + _ENVELOPE_BYTES_MAX


def check_schema_version(headers: Mapping[str, object]) -> None:
    """Raise Refusal unless the header `schema_version` is absent or the supported one."""
    version = headers.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise Refusal(
            Code.UNSUPPORTED_SCHEMA_VERSION,
            f"header schema_version: {str(version)[:40]!r} is not supported; "
            f"send {SCHEMA_VERSION}, or leave the header out",
        )


def read_traceparent(headers: Mapping[str, object]) -> str | None:
    """Return the W3C trace context of a message, or None where it has no valid one."""
    value = headers.get("traceparent")
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def request_hash(request: CheckedRequest) -> UUID:
    """Return a hash of the request, independent of the order of keys: equal requests have equal hashes.

    A field with its default does not count: a new field leaves the stored hashes of older versions valid.
    """
    parts = [b'{"action_ref":"%b"' % request.action_ref.encode()]
    for name, default, head in _HASHED:
        value = getattr(request, name)
        if value is not None and value != default:
            parts += head, value if type(value) is bytes else to_json(value)
    return _hash(b"%b}" % b"".join(parts))


def delivery_key(message_id: str, request_hash: UUID) -> UUID:
    """Return the key that recognises a message delivered twice (P5)."""
    return _hash(message_id.encode() + b"\0" + request_hash.bytes)


def json_text(value: object) -> str:
    """Return `value` as JSON text."""
    return to_json(value).decode()


def _hash(content: bytes) -> UUID:
    # A third of the time that `UUID` takes.
    return msgspec.convert(hashlib.blake2b(content, digest_size=16).digest(), UUID)


def _may_be_unstorable(body: bytes) -> bool:
    """Whether JSON text may contain a NUL character or a number out of range."""
    if _NUL in body:
        return True
    try:
        # Unlike `from_json` it refuses such numbers. It is faster than a search for them.
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return True
    return False


def _check_storable(value: object) -> None:
    match value:
        case str() if "\0" in value:
            raise Refusal(
                Code.INVALID_PARAMETERS,
                "body: contains the character U+0000, which cannot be stored; remove it",
            )
        case float() if not isfinite(value):
            raise Refusal(
                Code.INVALID_MESSAGE,
                "body: contains a number that is too large; numbers go up to 1.7e308, send it as a string",
            )
        case dict():
            for key, item in value.items():
                _check_storable(key)
                _check_storable(item)
        case list():
            for item in value:
                _check_storable(item)
        case _:
            pass


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )


def _refusal(errors: list[ErrorDetails], model: type[BaseModel]) -> Refusal:
    unknown_errors = [e for e in errors if e["type"] == "extra_forbidden"]
    if unknown_errors:
        unknown = [_path(e) for e in unknown_errors]
        known = known_fields(model, unknown_errors[0]["loc"])
        more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
        named = ", ".join(unknown[:_NAMED_MAX])
        hint = did_you_mean(str(unknown_errors[0]["loc"][-1]), known) if len(unknown) == 1 else ""
        return Refusal(
            Code.UNKNOWN_FIELD, f"{named}{more}: no such field{hint}; known are {', '.join(known)}"
        )
    code = Code.INVALID_PARAMETERS if errors[0]["loc"][:1] == ("parameters",) else Code.INVALID_MESSAGE
    named_first = invalid_values(errors)[:_NAMED_MAX]
    return Refusal(code, "; ".join(f"{each.path or 'body'}: {each.sentence}" for each in named_first))


def _path(error: ErrorDetails) -> str:
    return ".".join(str(step) for step in error["loc"])[:200] or "body"
