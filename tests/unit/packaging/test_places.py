"""CONTRIBUTING.md lists each place where a field of an action is written, and they are few."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from turnstile.common.action_definition import ActionDefinition, DeclaredFields

ROOT: Final = Path(__file__).parents[3]
_CODE: Final = ("*.py", "*.sql", "*.js", "*.html")
_NOT_THE_PRODUCT: Final = ("tests", "docs", "examples", "benchmarks")


def listed() -> list[str]:
    """Return the places of the list, each by the path that its line names."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## How to add a field to an action\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)


def naming(field: str) -> list[str]:
    """Return the files of the product that name a field."""
    paths = (*_CODE, *(f":!{folder}" for folder in _NOT_THE_PRODUCT))
    found = subprocess.run(
        ["git", "grep", "--untracked", "-lw", field, "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.splitlines()


@pytest.mark.parametrize("field", ["max_queued", "when_full"])
def test_a_plain_field_of_an_action_is_named_where_contributing_says_and_nowhere_else(field: str) -> None:
    places = listed()
    assert len(places) <= 6
    assert all((ROOT / each).exists() for each in places)
    assert set(naming(field)) == {each for each in places if each.endswith(".py")}


def test_code_may_set_each_field_of_an_action_but_its_name_and_what_is_run() -> None:
    fixed = {"ref", "runner", "entrypoint", "parameters_schema", "result_schema"}
    assert DeclaredFields.__annotations__.keys() == ActionDefinition.model_fields.keys() - fixed
