"""docs/guarantees.md names, for each promise, tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def test_every_promise_names_at_least_one_test() -> None:
    promises = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    named = {
        part.split()[0]: re.findall(r"^- `(tests/[^`]+)`$", part, flags=re.MULTILINE) for part in promises
    }
    assert [name for name in named if name.startswith("P")] == [f"P{number}" for number in range(1, 11)]
    assert all(named[f"P{number}"] for number in range(1, 11))


def test_every_test_named_exists() -> None:
    for reference in re.findall(r"`(tests/[^`]+::[^`]+)`", PAGE):
        path, _, name = reference.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), reference
