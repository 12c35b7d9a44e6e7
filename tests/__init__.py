"""The tests: unit, integration, e2e and proof."""

import sys

# Failed assertions of these helpers show the values, as those of the tests do. Services of the tests import
# their actions from here, without pytest.
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite("tests.support", "tests.proof")
