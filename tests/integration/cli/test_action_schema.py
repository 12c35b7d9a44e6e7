"""The JSON Schema of actions.yaml says what the reader of the file says, and its copy is the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.integration.cli.conftest import CommandLines
from turnstile.common.command_line import CommandFailed
from turnstile.executor.cli.action_file import read_action_file
from turnstile.executor.cli.action_schema import action_file_schema, schema_text

_COPY = Path(__file__).parents[3] / "docs" / "actions.schema.json"
VALID: list[Any] = [
    [],
    {"actions": [{"ref": "reports.render"}]},
    [{"ref": "a", "timeout": "1h 30m", "ttl": 2.5, "retry": {"max_attempts": 3, "delay": "250ms"}}],
    [{"ref": "a", "timeout": None, "max_concurrent": None, "concurrency_key": "/customer/id"}],
    [{"ref": "a", "runner": "command", "entrypoint": ["wc", "-w"]}],
    [{"ref": "a", "runner": "http", "entrypoint": "https://example.org/hook"}],
    [{"ref": "a", "entrypoint": "module:function"}],
]
INVALID: list[Any] = [
    7,
    {"actions": [], "more": []},
    [{"max_concurrent": 1}],
    [{"ref": "a b"}],
    [{"ref": "a", "max_concurent": 2}],
    [{"ref": "a", "max_concurrent": -1}],
    [{"ref": "a", "timeout": "soon"}],
    [{"ref": "a", "timeout": -1}],
    [{"ref": "a", "retry": {"max_attempts": 0}}],
    [{"ref": "a", "runner": "command"}],
    [{"ref": "a", "runner": "command", "entrypoint": []}],
    [{"ref": "a", "runner": "http", "entrypoint": "ftp://example.org"}],
    [{"ref": "a", "entrypoint": ["wc"]}],
    [{"ref": "a", "runner": "magic"}],
]


def is_read(folder: Path, content: Any) -> bool:
    file = folder / "actions.yaml"
    file.write_text(json.dumps(content))
    try:
        read_action_file(str(file))
    except CommandFailed:
        return False
    return True


@pytest.mark.parametrize("content", [*VALID, *INVALID])
def test_the_schema_takes_what_the_reader_takes(tmp_path: Path, content: Any) -> None:
    schema = action_file_schema()
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(content) == is_read(tmp_path, content) == (content in VALID)


def test_the_copy_in_the_docs_is_what_the_command_prints(alone: CommandLines) -> None:
    ended = alone.executor("actions", "schema")
    assert ended.exit_code == 0
    assert ended.out == schema_text()
    assert ended.out == _COPY.read_text(), "executor actions schema > docs/actions.schema.json"
