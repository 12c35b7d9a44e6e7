"""Sets up what records a run, and reads it at the end.

In: the servers before any service has started; afterwards the log of the submitters and the folder. Out: a
`Recording`. Next: `tests.proof.history.verdict`.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.proof.chaos.record import RECORD
from tests.proof.chaos.sent import Log
from tests.proof.history.log import install, read_moves
from tests.proof.history.recording import Recording, Submitted
from tests.proof.history.runs import booted_at, read_runs
from tests.proof.history.tap import declare_tap, read_tap


async def begin(database_url: str, amqp_url: str) -> None:
    """Record from here on."""
    connection = await asyncpg.connect(database_url)
    try:
        await install(connection)
    finally:
        await connection.close()
    await declare_tap(amqp_url)


async def read(database_url: str, amqp_url: str, folder: Path, log: Log) -> Recording:
    """Return what was recorded; everything has drained, so there is an end of each execution."""
    connection = await asyncpg.connect(database_url)
    try:
        moves = await read_moves(connection)
        ended = [
            row["id"]
            for row in await connection.fetch("SELECT id FROM execution WHERE completed_at IS NOT NULL")
        ]
    finally:
        await connection.close()
    return Recording(
        moves=moves,
        runs=read_runs(folder / RECORD),
        told=await read_tap(amqp_url, wanted=ended),
        submitted=list(_submitted(log)),
        booted_at=booted_at(),
    )


async def worker_names(database_url: str) -> dict[str, str]:
    """Return the name of each worker id that ever was."""
    connection = await asyncpg.connect(database_url)
    try:
        return {row["id"]: row["name"] for row in await connection.fetch("SELECT id, name FROM worker")}
    finally:
        await connection.close()


def _submitted(log: Log) -> Iterator[Submitted]:
    """Yield the submissions in the order of their first sending."""
    places: Counter[str] = Counter()
    for sent in log.sent.values():
        submitter = sent.submit.submitter
        places[submitter] += 1
        yield Submitted(
            submitter=submitter,
            number=places[submitter],
            mark=str(sent.submit.number),
            confirmed=sent.confirmed_at is not None,
            execution_id=sent.execution_id,
        )
