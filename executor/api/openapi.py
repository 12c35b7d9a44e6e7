"""Gives every body in the OpenAPI document an example, made from its schema.

In: the document that FastAPI generates. Out: the same, where each request and each answer without an example
has one: a field's own example, else one by its name or its type.
"""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI

_REFERENCE: Final = "#/components/schemas/"
_JSON: Final = "application/json"
_DEPTH_MAX: Final = 8

_BY_NAME: Final[Mapping[str, object]] = {
    "action_ref": "reports.render",
    "ref": "reports.render",
    "id": 4711,
    "execution_id": 4711,
    "action_id": 12,
    "retry_of": 4700,
    "retry_id": 4712,
    "attempt": 1,
    "attempts": 1,
    "concurrency_key": "customer-17",
    "idempotency_key": "invoice-2041",
    "parameters": {"customer_id": 17},
    "metadata": {"tenant": "acme"},
    "result": {"pages": 40},
    "worker_id": "5f2b8c1e-7f0a-4a53-9d55-2f3f8f5f6a10",
    "callback_url": "https://example.org/hooks/turnstile",
    "host": "worker-1.example.org",
    "name": "reports-1",
    "pool": "default",
    "pools": ["default"],
    "outcome": "failed",
    "entrypoint": ["wc", "-w"],
    "message": "the renderer ended with status 2",
    "next_cursor": "ZXhlY3V0aW9ucwo0NzEx",
}
_BY_FORMAT: Final[Mapping[str, object]] = {
    "date-time": "2026-11-21T07:30:00Z",
    "uuid": "0d1f6a2e-53c1-4d0e-8a43-b7a0a4f0a1f7",
    "uri": "https://example.org/",
}
_BY_TYPE: Final[Mapping[str, object]] = {
    "string": "text",
    "boolean": False,
    "null": None,
}


def install_examples(app: FastAPI) -> None:
    """Add the examples to what the app generates."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _add_examples(generate())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_examples(described: dict[str, Any]) -> None:
    schemas = described.get("components", {}).get("schemas", {})
    for operations in described.get("paths", {}).values():
        for operation in operations.values():
            bodies = [operation.get("requestBody", {}), *operation.get("responses", {}).values()]
            for body in bodies:
                content = body.get("content", {}).get(_JSON)
                if content and content.get("schema") and not (content.keys() & {"example", "examples"}):
                    content["example"] = _sample(content["schema"], schemas)


def _sample(schema: Mapping[str, Any], schemas: Mapping[str, Any], *, name: str = "", depth: int = 0) -> Any:
    """Return a value of this schema; `schemas` are those that it may refer to, by name."""
    if "$ref" in schema:
        return _sample(schemas[schema["$ref"].removeprefix(_REFERENCE)], schemas, name=name, depth=depth + 1)
    if own := schema.get("examples"):
        return own[0]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    variants = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if variants:
        return _sample(variants[0], schemas, name=name, depth=depth)
    return _of_type(schema, schemas, name, depth)


def _of_type(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str, depth: int) -> Any:
    kind = schema.get("type")
    if name in _BY_NAME and _is_a(kind, _BY_NAME[name]):
        return _BY_NAME[name]
    if kind == "array":
        deeper = depth < _DEPTH_MAX and "items" in schema
        return [_sample(schema["items"], schemas, name=name, depth=depth + 1)] if deeper else []
    if kind == "object":
        fields = schema.get("properties", {}) if depth < _DEPTH_MAX else {}
        return {key: _sample(part, schemas, name=key, depth=depth + 1) for key, part in fields.items()}
    if kind in ("integer", "number"):
        return min(max(1, schema.get("minimum", 1)), schema.get("maximum", 1))
    if kind == "string" and schema.get("format") in _BY_FORMAT:
        return _BY_FORMAT[schema["format"]]
    return _BY_TYPE.get(kind or "null")


def _is_a(kind: str | None, value: object) -> bool:
    kinds = {"string": str, "integer": int, "object": dict, "array": list}
    return kind is None or (kind in kinds and isinstance(value, kinds[kind]))
