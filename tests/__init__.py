"""The tests: unit, integration, e2e and proof."""

import pytest

# Failed assertions of these helpers show the values, as those of the tests do.
pytest.register_assert_rewrite("tests.support", "tests.proof")
