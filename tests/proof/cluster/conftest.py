"""`make cluster` runs all of these; `make test` leaves out those that start three brokers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnstile.localservers.servers import ScratchFolder

collect_ignore = [] if os.environ.get("CLUSTER") else ["test_broker_node_lost.py"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the servers' own accounts can reach."""
    scratch = ScratchFolder.create(in_memory=True)
    try:
        yield scratch.path
    finally:
        scratch.delete()
