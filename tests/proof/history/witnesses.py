"""Calls all witnesses at the end of a run.

In: the servers, the actions' file, the submitter's log. Out: one `Recording`. Next: `verdict`.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.proof.history.lives import lives_of
from tests.proof.history.log import Connection, read_moves
from tests.proof.history.recording import Recording, Submitted
from tests.proof.history.runs import booted_at, read_runs
from tests.proof.history.tap import read_tap


async def gather(
    connection: Connection,
    amqp_url: str,
    *,
    runs: Path,
    submitted: Sequence[Submitted],
    mark: str = "mark",
) -> Recording:
    """Return what happened since `log.install` and `tap.declare_tap`; all must have drained.

    `mark` is the key in the requests' metadata by which their submitter knows them.
    """
    moves = await read_moves(connection, mark=mark)
    return Recording(
        moves=moves,
        runs=read_runs(runs),
        told=await read_tap(amqp_url, wanted=lives_of(moves).keys()),
        submitted=submitted,
        booted_at=booted_at(),
    )
