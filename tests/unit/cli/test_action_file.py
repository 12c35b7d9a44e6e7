"""`actions.yaml` is read as a whole or rejected with all its errors; its JSON Schema agrees with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.cli import CommandFailed
from turnstile.common.exit_codes import ExitCode
from turnstile.executor.cli.action_file import (
    ActionEntry,
    DefinitionFile,
    action_file_schema,
    check_uses,
    read_action_file,
    schema_text,
)
from turnstile.executor.cli.apply import plan
from turnstile.executor.cli.arguments import LIMIT, Null
from turnstile.executor.cli.output import shown
from turnstile.executor.cli.resources import RATE
from turnstile.executor.definitions import KeySettings, PoolDefinition, ResourceDefinition

_COPY = Path(__file__).parents[3] / "docs" / "actions.schema.json"
VALID: list[Any] = [
    [],
    {"actions": [{"ref": "reports.render"}]},
    [{"ref": "a", "timeout": "1h 30m", "ttl": 2.5, "retry": {"max_attempts": 3, "delay": "250ms"}}],
    [{"ref": "a", "timeout": None, "max_concurrent": None, "concurrency_key": "/customer/id"}],
    [{"ref": "a", "runner": "command", "entrypoint": ["wc", "-w"]}],
    [{"ref": "a", "runner": "http", "entrypoint": "https://example.org/hook"}],
    [{"ref": "a", "entrypoint": "module:function"}],
    {"resources": []},
    {"resources": [{"name": "cad", "capacity": 3, "rank": 1}, {"name": "api", "order": "fair"}]},
    {"resources": [{"name": "api", "rate": {"starts": 100, "per": "1m"}, "paused": True}], "actions": []},
    [{"ref": "a", "uses": ["cad", {"resource": "api", "units": 2, "weight": 16}]}],
    [{"ref": "a", "rate": {"starts": 1, "per": 0.5}, "priority_min": 5}],
    [{"ref": "a", "runs": False}],
    [{"ref": "a", "submitter_keys": True, "max_concurrent_total": 3, "order": "fair"}],
    [{"ref": "a", "concurrency_key": "/who", "keys": {"7": {"max_concurrent": None}, "8": {"weight": 2}}}],
    [{"ref": "a", "keys": {}}],
]
INVALID: list[Any] = [
    7,
    {"actions": [], "more": []},
    [{"max_concurrent": 1}],
    [{"ref": "a b"}],
    [{"ref": "a", "max_concurent": 2}],
    [{"ref": "a", "max_concurrent": -1}],
    [{"ref": "a", "runs": None}],
    [{"ref": "a", "timeout": "soon"}],
    [{"ref": "a", "timeout": -1}],
    [{"ref": "a", "retry": {"max_attempts": 0}}],
    [{"ref": "a", "runner": "command"}],
    [{"ref": "a", "runner": "command", "entrypoint": []}],
    [{"ref": "a", "runner": "http", "entrypoint": "ftp://example.org"}],
    [{"ref": "a", "entrypoint": ["wc"]}],
    [{"ref": "a", "runner": "magic"}],
    {},
    {"resources": {}},
    {"resources": [{"capacity": 3}]},
    {"resources": [{"name": "c d"}]},
    {"resources": [{"name": "cad", "capacity": -1}]},
    {"resources": [{"name": "cad", "rank": 0}]},
    {"resources": [{"name": "cad", "rate": {"starts": 0, "per": 1}}]},
    {"resources": [{"name": "cad", "rate": {"starts": 1, "per": 0}}]},
    [{"ref": "a", "uses": [{"resource": "cad", "units": 0}]}],
    [{"ref": "a", "uses": [{"resource": "cad", "weight": 17}]}],
    [{"ref": "a", "uses": "cad"}],
    [{"ref": "a", "priority_min": 6}],
    [{"ref": "a", "max_concurrent_total": 3}],
    [{"ref": "a", "order": "fair", "concurrency_key": "/who"}],
    [{"ref": "a", "keys": {"7": {"weight": 2}}}],
    [{"ref": "a", "concurrency_key": "/who", "keys": {"7": {}}}],
    [{"ref": "a", "concurrency_key": "/who", "keys": {"7": {"weight": 17}}}],
]


def error_of(folder: Path, text: str | bytes) -> str:
    file = folder / "actions.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CommandFailed) as failed:
        read_action_file(str(file))
    assert failed.value.exit_code == ExitCode.USAGE
    return failed.value.message.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    "text", ["- {ref: a, timeout: 5m}\n- {ref: b}", "actions:\n- {ref: a, timeout: 5m}\n- {ref: b}"]
)
def test_a_list_and_a_mapping_with_a_list_are_equivalent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "actions.yaml"
    file.write_text(text)
    assert [(d.ref, d.timeout) for d in read_action_file(str(file)).actions] == [("a", 300.0), ("b", None)]


def test_every_error_names_file_entry_and_field(tmp_path: Path) -> None:
    lines = error_of(
        tmp_path, "- {ref: a, max_concurent: 2}\n- {ref: b, timeout: soon}\n- {ref: 'x y'}\n- 7\n"
    ).splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["actions.yaml", "entry 1 (a)", "max_concurent"],
        ["actions.yaml", "entry 2 (b)", "timeout"],
        ["actions.yaml", "entry 3 (x y)", "ref"],
        ["actions.yaml", "entry 4", "definition"],
    ]
    assert "known fields are ref, runner" in lines[0]
    assert "'30s'" in lines[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "- {ref: a, retry: {attempts: 3}}",
            "retry.attempts: unknown field; did you mean max_attempts?; known fields are max_attempts, ",
        ),
        (
            "resources: [{name: cad, capacty: 3}]",
            "resource 1 (cad): capacty: unknown field; did you mean capacity?; known fields are name, ",
        ),
        (
            "resources: [{name: cad}, {name: cad}]",
            "actions.yaml: resource 2 (cad): name: defined twice; keep one definition",
        ),
        (
            "- {ref: a, uses: [{resource: cad, unitz: 3}]}",
            "uses.0.unitz: unknown field; did you mean units?; known fields are resource, units, weight",
        ),
        (
            "- {ref: a, keys: {7: {weight: 2}}}",
            "keys: the action has no concurrency keys; set concurrency_key",
        ),
        ("- {ref: a}\n- {ref: a}", "actions.yaml: entry 2 (a): ref: defined twice; keep one definition"),
        ("- {ref: a, timeout: 1, timeout: 2}", "line 1, column 24: 'timeout' is given twice"),
    ],
)
def test_an_unknown_field_and_duplicates_are_rejected(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in error_of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "ref: a",
        "a: [",
        "- {? [1, 2] : 3}",
        "- !!python/object:os.system {}",
        "- !!map [a]",
        "- !!timestamp x",
        "- !!bool x",
        '- !!int ""',
        b"\xff",
        "[" * 500,
    ],
)
def test_a_file_without_a_list_of_actions_is_rejected_with_an_example(
    tmp_path: Path, text: str | bytes
) -> None:
    message = error_of(tmp_path, text)
    assert message.startswith("actions.yaml: ")
    assert "{ref: reports.render, max_concurrent: 3}" in message


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        read_action_file(str(tmp_path / "nothing.yaml"))


@pytest.mark.parametrize("content", [*VALID, *INVALID])
def test_the_schema_accepts_what_the_reader_accepts(tmp_path: Path, content: Any) -> None:
    schema = action_file_schema()
    Draft202012Validator.check_schema(schema)
    file = tmp_path / "actions.yaml"
    file.write_text(json.dumps(content))
    try:
        read_action_file(str(file))
        is_read = True
    except CommandFailed:
        is_read = False
    assert Draft202012Validator(schema).is_valid(content) == is_read == (content in VALID)


def test_the_copy_of_the_schema_in_the_docs_is_current() -> None:
    assert schema_text() == _COPY.read_text(), "executor actions schema > docs/actions.schema.json"


@pytest.mark.parametrize(
    ("wanted", "stored", "kind", "changes"),
    [
        ({"max_concurrent": 3}, None, "create", {"max_concurrent": (None, 3)}),
        ({"timeout": "5m"}, {"timeout": 300.0}, "keep", {}),
        (
            {},
            {"max_concurrent": 3, "paused": True, "runs": False},
            "change",
            {"max_concurrent": (3, None), "paused": (True, False), "runs": (False, True)},
        ),
        ({"retry": {"max_attempts": 4}}, {}, "change", {"retry.max_attempts": (1, 4)}),
    ],
)
def test_a_step_contains_the_fields_that_differ(
    wanted: dict[str, Any], stored: dict[str, Any] | None, kind: str, changes: dict[str, Any]
) -> None:
    before = {} if stored is None else {"a": ActionDefinition.model_validate({"ref": "a", **stored})}
    (step,) = plan([ActionDefinition.model_validate({"ref": "a", **wanted})], before)
    assert (step.kind, dict(step.changes)) == (kind, changes)


def test_actions_that_are_not_in_the_file_are_kept_and_the_order_is_that_of_the_file() -> None:
    wanted = [ActionDefinition(ref="b"), ActionDefinition(ref="a")]
    stored = {"z": ActionDefinition(ref="z"), "a": ActionDefinition(ref="a")}
    steps = [(step.name, step.kind) for step in plan(wanted, stored)]
    assert steps == [("b", "create"), ("a", "keep")]


@pytest.mark.parametrize(("text", "limit"), [("0000000004", 4), ("0", 0), ("000", 0), ("none", Null.NULL)])
def test_a_limit_is_read_completely(text: str, limit: object) -> None:
    assert LIMIT.parser is not None
    assert LIMIT.parser(text) == limit


@pytest.mark.parametrize("text", ["1000001", "10000000000", "0001000001", "-1", "", "9" * 5000])
def test_a_limit_out_of_range_is_rejected(text: str) -> None:
    assert LIMIT.parser is not None
    with pytest.raises(typer.BadParameter):
        LIMIT.parser(text)


def entry(**fields: Any) -> ActionEntry:
    return ActionEntry.model_validate({"ref": "a", "concurrency_key": "/who", **fields})


def test_keys_of_a_file_replace_the_stored_ones_only_with_prune_and_a_number_is_a_key() -> None:
    stored = {"a": ActionDefinition(ref="a", concurrency_key="/who")}
    keys = {"a": {"7": KeySettings(max_concurrent=5), "8": KeySettings(weight=2), "9": KeySettings(weight=3)}}
    wanted = entry(keys={7: {"max_concurrent": 5}, "8": {"weight": 4}, "x": {"max_concurrent": None}})
    (kept,) = plan([wanted], stored, keys=keys)
    assert (kept.kept_keys, kept.deleted_subjects) == (["9"], [])
    assert kept.keys == {"8": KeySettings(weight=4), "x": KeySettings(max_concurrent=None)}
    (step,) = plan([wanted], stored, keys=keys, prune=True)
    assert (step.kept_keys, step.deleted_subjects) == ((), ["keys.9 of a"])
    assert (step.kind, step.changes_definition) == ("change", False)
    assert dict(step.changes) == {
        "keys.8": ({"weight": 2}, {"weight": 4}),
        "keys.9": ({"weight": 3}, None),
        "keys.x": (None, {"max_concurrent": None}),
    }
    assert step.keys == {
        "8": KeySettings(weight=4), "9": None, "x": KeySettings(max_concurrent=None)
    }  # fmt: skip
    (untouched,) = plan([entry()], stored, keys=keys)
    assert untouched.kind == "keep"
    (cleared,) = plan([entry(keys={})], stored, keys=keys, prune=True)
    assert set(cleared.keys) == {"7", "8", "9"}


def test_pools_that_a_file_omits_get_the_default_settings_with_prune() -> None:
    stored = {"a": PoolDefinition(name="a", order="arrival"), "b": PoolDefinition(name="b")}
    (reset,) = plan([], stored, prune=True)
    assert (reset.subject, reset.kind, dict(reset.changes)) == (
        "pool a", "change", {"order": ("arrival", "fair")},
    )  # fmt: skip
    assert plan([], stored) == []
    assert plan(None, stored, prune=True) == []


def test_resources_are_deleted_only_by_a_file_that_lists_resources() -> None:
    stored = {"old": ResourceDefinition(name="old"), "cad": ResourceDefinition(name="cad", capacity=1)}
    wanted = [ResourceDefinition(name="new"), ResourceDefinition(name="cad", capacity=2)]
    steps = plan(wanted, stored, prune=True)
    assert [(step.subject, step.kind, dict(step.changes)) for step in steps] == [
        ("resource new", "create", {}),
        ("resource cad", "change", {"capacity": (1, 2)}),
        ("resource old", "delete", {}),
    ]
    assert [step.kind for step in plan(wanted, stored)] == ["create", "change"]
    assert plan(None, stored, prune=True) == []


def test_uses_are_checked_before_anything_is_applied() -> None:
    file = DefinitionFile(
        actions=[entry(uses=["cad", {"resource": "api", "units": 3}, "gpu"])],
        resources=[ResourceDefinition(name="api", capacity=2, rank=1)],
    )
    with pytest.raises(CommandFailed) as failed:
        check_uses(file, {}, {"cad": ResourceDefinition(name="cad", rank=1)})
    lines = failed.value.message.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["a:", "uses.0.units:"], ["a:", "uses.1:"], ["a:", "uses.2:"],
    ]  # fmt: skip
    assert "have the same rank 1" in lines[1]
    assert "executor resources put gpu --capacity NUMBER" in lines[2]
    known = {"a": ActionDefinition(ref="a", uses=file.actions[0].uses)}
    check_uses(file, known, {})


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100/1m", {"starts": 100, "per": 60.0}), ("1/0.5", {"starts": 1, "per": 0.5}), ("none", Null.NULL)],
)
def test_a_rate_is_read_from_one_word(text: str, rate: object) -> None:
    assert RATE.parser is not None
    assert RATE.parser(text) == rate


@pytest.mark.parametrize(
    "text", ["", "100", "0/1s", "x/1s", "1/", "1/0", "1/2d", "-1/1s", "9" * 5000 + "/1s"]
)
def test_an_invalid_rate_is_rejected_with_an_example(text: str) -> None:
    assert RATE.parser is not None
    with pytest.raises(typer.BadParameter, match="like 100/1m"):
        RATE.parser(text)


def test_values_are_shown_as_they_are_written() -> None:
    uses = [{"resource": "cad", "units": 2, "weight": 3}, {"resource": "api", "units": 1, "weight": 1}]
    assert shown("uses", uses) == "cad x2 weight 3, api"
    assert shown("rate", {"starts": 100, "per": 60}) == "100/1m"
    assert shown("rate.per", 60) == "1m"
    assert shown("rate", None) == "none"
