"""docs/guarantees.md names, for each promise, tests that exist; docs/scenarios.md for each scenario."""

import re

import pytest

from tests.proof import scenarios as page

ROOT = page.ROOT
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
SCENARIOS = page.SCENARIOS.read_text()
MEASURED = 12
"""The scenario that a benchmark measures."""


PROMISES = [*range(1, 19)]


def test_every_promise_names_at_least_one_test() -> None:
    promises = re.split(r"^## ", GUARANTEES, flags=re.MULTILINE)[1:]
    named = {part.split()[0]: page.tests_named_in(part) for part in promises}
    assert [name for name in named if name.startswith("P")] == [f"P{number}" for number in PROMISES]
    assert all(named[f"P{number}"] for number in PROMISES)


def test_every_scenario_names_at_least_one_test() -> None:
    scenarios = re.split(r"^\*\*(\d+)\.\*\* ", SCENARIOS, flags=re.MULTILINE)[1:]
    named = {
        int(number): page.tests_named_in(part)
        for number, part in zip(scenarios[::2], scenarios[1::2], strict=True)
    }
    assert list(named) == list(range(1, len(named) + 1))
    assert [number for number, tests in named.items() if not tests] == [MEASURED]


@pytest.mark.parametrize("text", [GUARANTEES, SCENARIOS], ids=["guarantees", "scenarios"])
def test_every_test_named_exists(text: str) -> None:
    for reference in re.findall(r"`(tests/[^`]+::[^`]+)`", text):
        path, _, name = reference.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), reference
