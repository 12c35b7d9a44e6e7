"""Says in OpenAPI what the bodies look like that are read by hand (`common.requests`), with examples."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_EXAMPLES: dict[str, dict[str, Any]] = {
    "ExecutionRequested": {
        "one": {
            "summary": "One execution",
            "value": {
                "action_ref": "reports.render",
                "parameters": {"customer_id": 17},
                "idempotency_key": "invoice-2041",
            },
        },
        "list": {
            "summary": "Two executions, admitted in this order",
            "value": [
                {"action_ref": "reports.render", "parameters": {"customer_id": 17}},
                {"action_ref": "reports.render", "parameters": {"customer_id": 18}, "ttl": "1h"},
            ],
        },
    },
    "ActionFields": {
        "command": {
            "summary": "At most two at once",
            "value": {"runner": "command", "entrypoint": ["wc", "-w"], "max_concurrent": 2, "timeout": "5m"},
        },
        "limit": {"summary": "A limit, and nothing else", "value": {"max_concurrent": 5}},
    },
    "CancelBody": {"reason": {"summary": "With a reason", "value": {"reason": "no longer needed"}}},
}


def requested_body(name: str, *, or_list: bool = False, required: bool = True) -> dict[str, Any]:
    """Return what OpenAPI says about a body that is one model, or a list of them."""
    one = {"$ref": f"#/components/schemas/{name}"}
    schema = {"oneOf": [one, {"type": "array", "items": one, "maxItems": 1000}]} if or_list else one
    content = {"application/json": {"schema": schema, "examples": _EXAMPLES.get(name, {})}}
    return {"requestBody": {"required": required, "content": content}}


def describe(app: FastAPI, *models: type[BaseModel]) -> None:
    """Add the schemas of `models` to what the app says about itself."""
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generated()
            _, described = models_json_schema(
                [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for name, definition in described.get("$defs", {}).items():
                schemas.setdefault(name, definition)
            # The path names the action, and every other field has a default or is kept.
            fields = {key: part for key, part in schemas["ActionDefinition"].items() if key != "required"}
            schemas["ActionFields"] = fields | {"title": "ActionFields"}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
