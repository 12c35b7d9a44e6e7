"""Says in OpenAPI what the bodies look like that are read by hand (`common.requests`), with examples."""

import json
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from turnstile.executor.api.examples import add_examples

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
    "RetryBody": {"nothing": {"summary": "There is nothing to say", "value": {}}},
    "BulkCancelBody": {
        "dry": {
            "summary": "Which of a tenant's would be ended?",
            "value": {
                "filter": {"action_ref": "reports.render", "metadata": {"tenant": "acme"}},
                "dry_run": True,
            },
        },
        "queued": {
            "summary": "End what waits, with a reason",
            "value": {
                "filter": {"action_ref": "reports.render", "status": ["queued", "delayed"]},
                "reason": "no longer needed",
            },
        },
    },
    "BulkRetryBody": {
        "night": {
            "summary": "Do again what failed in one night",
            "value": {
                "filter": {
                    "action_ref": "reports.render",
                    "status": ["failed", "timeout"],
                    "created_after": "2026-11-20T22:00:00Z",
                    "created_before": "2026-11-21T06:00:00Z",
                },
                "limit": 500,
            },
        }
    },
}


def requested_body(name: str, *, or_list: bool = False, required: bool = True) -> dict[str, Any]:
    """Return what OpenAPI says about a body that is one model, or a list of them."""
    one = {"$ref": f"#/components/schemas/{name}"}
    schema = {"oneOf": [one, {"type": "array", "items": one, "maxItems": 1000}]} if or_list else one
    body: dict[str, Any] = {"schema": schema}
    if name in _EXAMPLES:
        body["examples"] = _EXAMPLES[name]
    content = {"application/json": body}
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
            _add_schemas(schemas, described.get("$defs", {}))
            # The path names the action, and every other field has a default or is kept.
            fields = {key: part for key, part in schemas["ActionDefinition"].items() if key != "required"}
            schemas["ActionFields"] = fields | {"title": "ActionFields"}
            add_examples(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_schemas(schemas: dict[str, Any], described: dict[str, Any]) -> None:
    """Add definitions; what is read in another way than it is shown gets a second one, its input."""
    text = json.dumps(described)
    inputs = {name for name, definition in described.items() if schemas.get(name, definition) != definition}
    for name in inputs:
        text = text.replace(f'"#/components/schemas/{name}"', f'"#/components/schemas/{name}-Input"')
    for name, definition in json.loads(text).items():
        schemas[f"{name}-Input" if name in inputs else name] = definition
