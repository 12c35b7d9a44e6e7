"""Where the actions of a run write down that they start and until when they are there.

In: calls from inside the actions, in the worker, in its children, in commands. Out: lines that
`tests.proof.history.runs` reads, in the file that the environment of the services names. Imports little, as
every command starts with it.
"""

import os
from collections.abc import Iterator
from typing import Final

from tests.proof.history.runs import note

RECORD_VARIABLE: Final = "CHAOS_RECORD"
RECORD: Final = "record.jsonl"
"""The file in the run's folder."""
_SEEN_EVERY_SECONDS: Final = 0.2


def note_start(execution_id: int, attempt: int) -> None:
    """Say that a run starts."""
    note(os.environ[RECORD_VARIABLE], "start", execution_id, attempt)


def note_seen(execution_id: int, attempt: int) -> None:
    """Say that a run is still there; the last of these is its stop, also where it was killed."""
    note(os.environ[RECORD_VARIABLE], "stop", execution_id, attempt)


def spells(seconds: float) -> Iterator[float]:
    """Cut the time of a run into pieces, at least one; after each it is to be noted as seen."""
    while seconds > _SEEN_EVERY_SECONDS:
        yield _SEEN_EVERY_SECONDS
        seconds -= _SEEN_EVERY_SECONDS
    yield seconds
