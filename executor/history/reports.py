"""Writes logs and progress of running attempts, beside the turns: any executor may, as nothing is decided.

In: batches of a worker's messages. Out: rows, of the sender's own attempts only (P6). A repeated message
changes nothing: a piece of a log is stored once, and the newest progress replaces the one before it.
"""

from collections.abc import Sequence
from typing import Final

from turnstile.common.database import Database
from turnstile.common.report_wire import LogPiece, ProgressReport
from turnstile.executor.sql import statements

_STATEMENTS: Final = statements("history/history.sql")
_LOG_KEPT_CHARS: Final = 65_536


class ReportWriter:
    """Safe to share between tasks. Raises Unavailable: the same batch can be written again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append_logs(self, worker_id: str, secret_hash: bytes, pieces: Sequence[LogPiece]) -> int:
        """Store pieces of logs; return how many were of attempts that are not the worker's."""
        refused = await self._database.fetchval(
            _STATEMENTS["append_logs"],
            worker_id,
            secret_hash,
            *_columns(pieces),
            [piece.start for piece in pieces],
            [_storable(piece.text) for piece in pieces],
            _LOG_KEPT_CHARS,
        )
        return int(refused)

    async def report_progress(
        self, worker_id: str, secret_hash: bytes, reports: Sequence[ProgressReport]
    ) -> int:
        """Store the newest progress of each attempt; return how many were not the worker's attempts."""
        in_order = sorted(reports, key=lambda each: each.at)
        newest = list({(each.execution_id, each.attempt): each for each in in_order}.values())
        refused = await self._database.fetchval(
            _STATEMENTS["report_progress"],
            worker_id,
            secret_hash,
            *_columns(newest),
            [each.at for each in newest],
            [each.done for each in newest],
            [each.total for each in newest],
            [None if each.message is None else _storable(each.message) for each in newest],
        )
        return int(refused)


def _columns(attempts: Sequence[LogPiece | ProgressReport]) -> tuple[list[int], ...]:
    return (
        [each.execution_id for each in attempts],
        [each.attempt for each in attempts],
        [each.grant.epoch for each in attempts],
        [each.grant.counter for each in attempts],
    )


def _storable(text: str) -> str:
    """Return the text without the one character that PostgreSQL cannot store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")
