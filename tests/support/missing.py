"""What a test does where something that it needs is missing: it is skipped, and fails in CI.

In: what is missing, with the remedy. CI must have everything: a test that is always skipped proves nothing.
"""

import os
from typing import NoReturn

import pytest


def skip(reason: object) -> NoReturn:
    """Skip this test; fail it where the variable CI is set."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))
