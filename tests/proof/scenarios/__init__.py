"""Reads which tests a page of the documentation names; `python -m tests.proof.scenarios` runs them."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
SCENARIOS: Final = ROOT / "docs" / "scenarios.md"


def tests_named_in(text: str) -> list[str]:
    """Return the tests that have a line of their own, as pytest's node ids, in order."""
    return re.findall(r"^- `(tests/[^`]+)`$", text, flags=re.MULTILINE)
