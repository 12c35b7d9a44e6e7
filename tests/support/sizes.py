"""The size of a large test: reduced in `make test`, whole in `make scenarios`."""

from typing import Any

import pytest


def sizes(name: str, *, short: Any, whole: Any) -> pytest.MarkDecorator:
    """Give a test the argument `name` twice: `short` in every run, `whole` in runs with that mark."""
    return pytest.mark.parametrize(
        name, [pytest.param(short, id="short"), pytest.param(whole, id="whole", marks=pytest.mark.whole)]
    )
