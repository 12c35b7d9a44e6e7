"""Reads requests from outside: bytes in; a checked request, or a `Refusal` that names field and remedy, out.

No input raises anything else: not JSON, not UTF-8, NaN, a NUL character, any depth, any size. The request
listener, the HTTP API and the client share these checks, so all of them refuse alike.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeVar, get_args
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.invalid_values import invalid_values
from turnstile.common.json_limits import LEVELS_MAX, read_document
from turnstile.common.messages import SCHEMA_VERSION, ExecutionRequested
from turnstile.common.nearest import did_you_mean

PARAMETERS_BYTES_MAX: Final = 256 * 1024
_ENVELOPE_BYTES_MAX: Final = 64 * 1024
_JSON_FIELDS: Final = ("parameters", "metadata")
_RARE_FIELDS: Final = {
    name: field.default
    for name, field in ExecutionRequested.model_fields.items()
    if name not in {"action_ref", "idempotency_key", *_JSON_FIELDS}
}
"""Fields of a request that change its hash and are rarely given, with their defaults."""
_NESTING: Final = (dict, list)
_NAMED_MAX: Final = 5
"""Number of wrong fields that one refusal names at most."""
_DIGITS_UNUSUAL: Final = 300
_LARGE_EXPONENT: Final = re.compile(rb"[eE](?<=[0-9][eE])\+?[0-9]{3}")
_MANY_DIGITS: Final = re.compile(rb"[0-9]{%d}" % _DIGITS_UNUSUAL)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Model = TypeVar("Model", bound=BaseModel)


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


def read_request(value: Any, *, parameters_bytes_max: int = PARAMETERS_BYTES_MAX) -> ExecutionRequested:
    """Return a checked request from a JSON value, which becomes part of it."""
    request = _read_around_documents(value)
    for field in _JSON_FIELDS:
        text = json_text(getattr(request, field))
        size_bytes = len(text)
        if size_bytes > parameters_bytes_max:
            raise Refusal(
                Code.TOO_LARGE,
                f"{field}: {size_bytes} bytes, at most {parameters_bytes_max} are accepted; send a reference",
            )
        try:
            if text.count("[") + text.count("{") > LEVELS_MAX:
                read_document(text)
        except ValueError as error:
            raise Refusal(Code.INVALID_PARAMETERS, f"{field}: {error}") from None
    return request


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


def read_requested_body(
    body: bytes, *, parameters_bytes_max: int = PARAMETERS_BYTES_MAX
) -> ExecutionRequested:
    """Return the checked request in the body of `execution.requested` or of one `POST /executions`."""
    value = read_json(body, bytes_max=request_bytes_max(parameters_bytes_max))
    return read_request(value, parameters_bytes_max=parameters_bytes_max)


def request_bytes_max(parameters_bytes_max: int) -> int:
    """Return the maximum size of one request body; JSON may be written in twice the bytes."""
    return 2 * parameters_bytes_max + _ENVELOPE_BYTES_MAX


def known_fields(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return the names of the fields allowed at the location of an unknown field."""
    for step in location[:-1]:
        kind = model.model_fields[step].annotation if step in model.model_fields else None
        model = _model_in(kind) or model
    return ", ".join(model.model_fields)


def _model_in(kind: object) -> type[BaseModel] | None:
    """Return the model in the annotation of a field: itself, or that of its items, or None."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((model for part in get_args(kind) if (model := _model_in(part)) is not None), None)


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


def request_hash(request: ExecutionRequested) -> UUID:
    """Return a hash of the request, independent of the order of keys: equal requests have equal hashes.

    A field with its default does not count: a new field leaves the stored hashes of older versions valid.
    """
    fields: dict[str, Any] = {"action_ref": request.action_ref}
    given = vars(request)
    if any(given[name] != default for name, default in _RARE_FIELDS.items()):
        fields = request.model_dump(
            mode="json", exclude={"idempotency_key", *_JSON_FIELDS}, exclude_defaults=True
        )
    fields |= {field: value for field in _JSON_FIELDS if (value := getattr(request, field))}
    return _hash(to_json(_sorted(fields)))


def delivery_key(message_id: str, request_hash: UUID) -> UUID:
    """Return the key that recognises a message delivered twice (P5)."""
    return _hash(message_id.encode() + b"\0" + request_hash.bytes)


def json_text(value: object) -> str:
    """Return `value` as JSON text."""
    return to_json(value).decode()


def _hash(content: bytes) -> UUID:
    return UUID(bytes=hashlib.blake2b(content, digest_size=16).digest())


def _sorted(value: Any) -> Any:
    """Return `value` with the keys of every object in order; copies only what is out of order."""
    if isinstance(value, dict):
        keys = list(value)
        in_order = sorted(keys)
        if keys != in_order:
            value = {key: value[key] for key in in_order}
        items: Iterable[Any] = value.items()
    else:
        items = enumerate(value)
    changed = {}
    for key, item in items:
        if type(item) in _NESTING and item and (in_order_item := _sorted(item)) is not item:
            changed[key] = in_order_item
    if not changed:
        return value
    if isinstance(value, dict):
        return value | changed
    return [changed.get(index, item) for index, item in enumerate(value)]


def _may_be_unstorable(body: bytes) -> bool:
    """Whether JSON text may contain a NUL character or a number out of range, without parsing it again."""
    return (
        b"\\u0000" in body
        or _LARGE_EXPONENT.search(body) is not None
        or (len(body) >= _DIGITS_UNUSUAL and _MANY_DIGITS.search(body) is not None)
    )


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
        hint = did_you_mean(str(unknown_errors[0]["loc"][-1]), known.split(", ")) if len(unknown) == 1 else ""
        return Refusal(Code.UNKNOWN_FIELD, f"{named}{more}: no such field{hint}; known are {known}")
    code = Code.INVALID_PARAMETERS if errors[0]["loc"][:1] == ("parameters",) else Code.INVALID_MESSAGE
    named_first = invalid_values(errors)[:_NAMED_MAX]
    return Refusal(code, "; ".join(f"{each.path or 'body'}: {each.sentence}" for each in named_first))


def _path(error: ErrorDetails) -> str:
    return ".".join(str(step) for step in error["loc"])[:200] or "body"
