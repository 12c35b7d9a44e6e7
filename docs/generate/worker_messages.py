"""The JSON Schemas of the messages between leader and worker, from the structures that read them."""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from turnstile.common import report_wire, worker_wire

_BODIES: Final[Mapping[str, type]] = {
    worker_wire.WORKER_HELLO: worker_wire._Hello,
    worker_wire.WORKER_HEARTBEAT: worker_wire._Heartbeat,
    worker_wire.WORKER_REPORTS: worker_wire._Reports,
    report_wire.EXECUTION_LOG: report_wire._Log,
    report_wire.EXECUTION_PROGRESS: report_wire._AllProgress,
    worker_wire.LEADER_MESSAGES: worker_wire._LeaderMessages,
}
_TITLE: Final = "The messages between the leader and a worker: docs/worker-protocol.md has the rules."


def worker_messages_schema() -> str:
    """Return one document: a definition for each AMQP `type`, and for what is in its bodies."""
    references, parts = msgspec.json.schema_components(_BODIES.values(), ref_template="#/$defs/{name}")
    definitions = {name.lstrip("_"): _named(part) for name, part in parts.items()}
    bodies = {kind: _named(each) for kind, each in zip(_BODIES, references, strict=True)}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        "$defs": bodies | dict(sorted(definitions.items())),
    }
    return json.dumps(document, indent=1) + "\n"


def _named(part: Any) -> Any:
    """Return a part under the names that a reader sees: without underscores and without our docstrings."""
    match part:
        case dict():
            shown = {key: _named(each) for key, each in part.items() if key != "description"}
            for key in ("title", "$ref"):
                if isinstance(shown.get(key), str):
                    shown[key] = shown[key].replace("#/$defs/_", "#/$defs/").lstrip("_")
            if "mapping" in shown.get("discriminator", {}):
                mapping = shown["discriminator"]["mapping"]
                shown["discriminator"]["mapping"] = {
                    kind: reference.replace("#/$defs/_", "#/$defs/") for kind, reference in mapping.items()
                }
            return shown
        case list():
            return [_named(each) for each in part]
        case _:
            return part
