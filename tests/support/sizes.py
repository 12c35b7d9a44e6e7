"""The size of a large test: reduced in `make test`, whole in `make whole` and `make scenarios`."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest


def sizes(name: str, *, short: Any, whole: Any) -> pytest.MarkDecorator:
    """Give a test the argument `name` twice: `short` in every run, `whole` in runs with that mark."""
    return pytest.mark.parametrize(
        name, [pytest.param(short, id="short"), pytest.param(whole, id="whole", marks=pytest.mark.whole)]
    )


def within(seconds: float) -> Iterator[int]:
    """Yield seeds from 0 on for so much time of this process's processor: a busy machine changes nothing."""
    until = time.process_time() + seconds
    for seed in count():
        yield seed
        if time.process_time() > until:
            return
