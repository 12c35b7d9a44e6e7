"""docs/worker-protocol.md: its examples are messages of the protocol, and its tables name every field."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from turnstile.common import report_wire, worker_wire
from turnstile.testing.worker_check.cases import CASES
from turnstile.testing.worker_check.scene import SETTINGS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "worker-protocol.md").read_text()
SCHEMA = json.loads((DOCS / "reference" / "worker-messages.schema.json").read_text())
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DECODERS: dict[str, Callable[[bytes], object]] = {
    worker_wire.WORKER_HELLO: worker_wire.decode_hello,
    worker_wire.WORKER_HEARTBEAT: worker_wire.decode_heartbeat,
    worker_wire.WORKER_REPORTS: worker_wire.decode_reports,
    worker_wire.LEADER_MESSAGES: worker_wire.decode_to_session,
    report_wire.EXECUTION_LOG: report_wire.decode_log,
    report_wire.EXECUTION_PROGRESS: report_wire.decode_progress,
}
OTHER_TABLES = {
    "an offer": "Offer",
    "a piece": "Piece",
    "a progress": "Progress",
    "`leader.messages`": "LeaderMessages",
}
"""Definitions of the schema that have a table under another name than their `type`."""


def test_every_kind_of_message_has_an_example() -> None:
    assert {json.loads(example)["type"] for example in EXAMPLES} == set(DECODERS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_read_and_fits_the_schema(example: str) -> None:
    document = json.loads(example)
    assert DECODERS[document["type"]](example.encode())
    jsonschema_rs.validator_for(SCHEMA | {"$ref": f"#/$defs/{document['type']}"}).validate(document)


def test_every_message_inside_a_body_has_an_example() -> None:
    shown = {kind for example in EXAMPLES for kind in re.findall(r'"body": {"type": "([a-z.]+)"', example)}
    assert shown == set(_types())


def _types() -> Iterator[str]:
    for part in SCHEMA["$defs"].values():
        yield from part.get("properties", {}).get("type", {}).get("enum", [])


def _tables() -> dict[str, set[str]]:
    """Return the names of the fields of each table, by what its heading says it is of."""
    found: dict[str, set[str]] = {}
    for of, rows in re.findall(r"^\| field of (.*?) \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        cells = [row.split("|")[1] for row in rows.splitlines()]
        found[of] = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    return found


def _definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a table is of, and the definition in the schema."""
    for of, name in OTHER_TABLES.items():
        yield of, SCHEMA["$defs"][name]
    for kind in (worker_wire.WORKER_HELLO, worker_wire.WORKER_HEARTBEAT, worker_wire.WORKER_REPORTS):
        yield f"`{kind}`", SCHEMA["$defs"][SCHEMA["$defs"][kind]["$ref"].rpartition("/")[2]]
    for part in SCHEMA["$defs"].values():
        kinds = part.get("properties", {}).get("type", {}).get("enum", [])
        if kinds and len(part["properties"]) > 1:
            yield f"`{kinds[0]}`", part


def test_the_tables_name_every_field_and_no_other() -> None:
    expected = {of: set(part["properties"]) - {"type"} for of, part in _definitions()}
    assert _tables() == expected


def test_every_case_of_the_kit_names_a_section_of_the_page() -> None:
    headings = set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert {case.section for case in CASES} <= headings


def test_the_page_names_the_settings_of_the_kit() -> None:
    section = PAGE.partition("\n## Check a worker\n")[2]
    rows = {
        name: row.split("|")[2].partition(":")[0].strip(" `")
        for row in section.splitlines()
        for name in re.findall(r"`(TURNSTILE_\w+)`", row.split("|")[1] if row.startswith("|") else "")
    }
    assert {name: rows[name] for name in SETTINGS} == SETTINGS
