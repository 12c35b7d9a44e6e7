"""Where the actions of a run write down that they start and stop; the environment of the services names it.

In: calls from inside the actions, in the worker, in its children, in commands. Out: lines that
`tests.history.runs` reads. Imports little, since every command starts with it.
"""

import os
from typing import Final

from tests.history.runs import note

RECORD_VARIABLE: Final = "CHAOS_RECORD"
RECORD: Final = "record.jsonl"
"""The file in the run's folder."""


def note_start(execution_id: int, attempt: int) -> None:
    """Say that a run starts."""
    note(os.environ[RECORD_VARIABLE], "start", execution_id, attempt)


def note_stop(execution_id: int, attempt: int) -> None:
    """Say that a run stops."""
    note(os.environ[RECORD_VARIABLE], "stop", execution_id, attempt)
