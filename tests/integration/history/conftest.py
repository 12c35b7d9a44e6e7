"""A ledger with the tables of the history, per test."""

import hashlib
from typing import Final, NamedTuple

import pytest

from tests.support.ledger import Led, granted
from turnstile.common.database import Database
from turnstile.common.domain.identifiers import Grant
from turnstile.executor.history.executions import Executions
from turnstile.executor.leader.records import WorkerRow
from turnstile.executor.queries.read_limiter import ReadLimiter

HASH: Final = hashlib.sha256(b"secret").digest()


@pytest.fixture
def executions(database: Database) -> Executions:
    return Executions(database, ReadLimiter())


class AttemptOf(NamedTuple):
    execution_id: int
    attempt: int
    grant: Grant


def worker(worker_id: str) -> WorkerRow:
    return WorkerRow(
        worker_id=worker_id, session=1, secret_hash=HASH, name="n", pools=("p",), actions=None,
        concurrency=4, lease_seconds=30.0, is_taking=True,
    )  # fmt: skip


@pytest.fixture
async def first(led: Led) -> AttemptOf:
    """Execution 2, granted to `w` the first time, as the second of a row of grants."""
    await led.admit(1, 2, 3, workers=[worker("w"), worker("v")])
    await led.write(granted=[granted(led.epoch, 1, 1, 2, 3)])
    await led.write(granted=[granted(led.epoch, 4, 9, worker_id="v")])
    return AttemptOf(execution_id=2, attempt=1, grant=Grant(led.epoch, 2))
