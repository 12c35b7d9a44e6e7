"""How much of a heavy test runs: a part of it in `make test`, all of it in `make scenarios`."""

from typing import Any

import pytest


def sizes(name: str, *, short: Any, whole: Any) -> pytest.MarkDecorator:
    """Give a test the argument `name` twice: `short` in every run, `whole` where it is asked for."""
    return pytest.mark.parametrize(
        name, [pytest.param(short, id="short"), pytest.param(whole, id="whole", marks=pytest.mark.whole)]
    )
