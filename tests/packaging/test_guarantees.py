"""docs/guarantees.md names, for each promise, tests that exist; docs/scenarios.md for each scenario."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
SCENARIOS = (ROOT / "docs" / "scenarios.md").read_text()
MEASURED = 12
"""The one scenario that a benchmark answers."""


def named_in(part: str) -> list[str]:
    return re.findall(r"^- `(tests/[^`]+)`$", part, flags=re.MULTILINE)


def test_every_promise_names_at_least_one_test() -> None:
    promises = re.split(r"^## ", GUARANTEES, flags=re.MULTILINE)[1:]
    named = {part.split()[0]: named_in(part) for part in promises}
    assert [name for name in named if name.startswith("P")] == [f"P{number}" for number in range(1, 11)]
    assert all(named[f"P{number}"] for number in range(1, 11))


def test_every_scenario_names_at_least_one_test() -> None:
    scenarios = re.split(r"^\*\*(\d+)\.\*\* ", SCENARIOS, flags=re.MULTILINE)[1:]
    named = {
        int(number): named_in(part) for number, part in zip(scenarios[::2], scenarios[1::2], strict=True)
    }
    assert list(named) == list(range(1, 38))
    assert [number for number, tests in named.items() if not tests] == [MEASURED]


@pytest.mark.parametrize("page", [GUARANTEES, SCENARIOS], ids=["guarantees", "scenarios"])
def test_every_test_named_exists(page: str) -> None:
    for reference in re.findall(r"`(tests/[^`]+::[^`]+)`", page):
        path, _, name = reference.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), reference
