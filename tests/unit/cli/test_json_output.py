"""What commands print for programs, and how they end, is listed in the documentation."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.json_output import commands_with_json, problem_of
from turnstile.common.exit_codes import ExitCode
from turnstile.json_output import JSON_OUTPUT, PAGE, SCHEMA, page_text, schema_text
from turnstile.localservers.errors import LocalServersError, MissingBinaries

_REPOSITORY = Path(__file__).parents[3]
_DOCS = _REPOSITORY / "docs"
_REFRESH = "python -m turnstile.json_output docs"
_SOURCES = ("common", "executor", "worker", "stress", "client", "src/turnstile")
_ENDS = ("Exit", "exit", "_exit", "SystemExit", "CommandFailed")


def _examples() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_DOCS / "commands.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_command_with_json_has_a_schema_and_the_documentation_is_that_of_this_version() -> None:
    assert commands_with_json() == JSON_OUTPUT.keys()
    assert (_DOCS / SCHEMA).read_text(encoding="utf-8") == schema_text(), _REFRESH
    page = (_DOCS / PAGE).read_text(encoding="utf-8")
    assert page == page_text(page), _REFRESH


def test_the_example_of_every_command_is_what_its_schema_says() -> None:
    examples = _examples()
    assert [each["command"] for each in examples] == [*JSON_OUTPUT]
    for each in examples:
        assert each["called"].startswith(each["command"])
        assert problem_of(each["command"], each["prints"]) is None, each["command"]


def test_a_field_that_is_missing_or_not_in_the_schema_is_found() -> None:
    (got,) = (each["prints"] for each in _examples() if each["command"] == "executor get")
    assert problem_of("executor get", {**got, "unknown": 1}) is not None
    assert problem_of("executor get", {name: got[name] for name in got if name != "status"}) is not None


def test_no_command_ends_with_a_number_that_is_not_listed() -> None:
    found = [
        f"{file.relative_to(_REPOSITORY)}:{line}: {number}"
        for source in _SOURCES
        for file in sorted((_REPOSITORY / source).glob("**/*.py"))
        for line, number in _numbers(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []
    for error in (LocalServersError, MissingBinaries):
        assert error.exit_code in [*ExitCode]


@pytest.mark.parametrize(
    "code",
    ["raise typer.Exit(9)", "sys.exit(0 if done else code)", "sys.exit(-1)", "CommandFailed(m, exit_code=9)"],
)
def test_a_literal_exit_code_is_found(code: str) -> None:
    assert [*_numbers(ast.parse(code))] != []


def _numbers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the places where a process or a command ends with a number instead of an `ExitCode`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = [*node.args, *(each.value for each in node.keywords if each.arg in ("code", "exit_code"))]
        if name in _ENDS and any(map(_is_number, given)):
            yield node.lineno, ast.unparse(node)


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int()) | ast.UnaryOp(operand=ast.Constant(value=int())):
            return True
        case ast.IfExp(body=body, orelse=otherwise):
            return _is_number(body) or _is_number(otherwise)
        case _:
            return False
