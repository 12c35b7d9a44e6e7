"""Remembers queues that other sessions hold: they are tried, and waited for only now and then (P9).

In: what the statements of `queue_manager` found locked and free. Out: the suspects of the next statement.
A row that somebody forgot to unlock costs a wait every few seconds, not one in each statement. A queue that
our own services locked for a moment too long is no suspect any more once it could be locked.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnstile.common.domain.identifiers import QueueId
from turnstile.executor.metrics import QUEUES_HELD

logger = logging.getLogger(__name__)

_SUSPECTS_MAX: Final = 1000
_SUSPECT_FIRST_SECONDS: Final = 1.0
_SUSPECT_MAX_SECONDS: Final = 8.0


@dataclass(slots=True, kw_only=True)
class _Suspicion:
    until: float
    seconds: float


class HeldQueues:
    """The memory of one executor."""

    def __init__(self) -> None:
        self._suspicions: dict[QueueId, _Suspicion] = {}
        self._caution = _Suspicion(until=0.0, seconds=0.0)

    def suspects(self) -> list[QueueId] | None:
        """Return those that are not to be waited for; None: no row is, since a wait was in vain just now."""
        now = time.monotonic()
        if self._caution.until > now:
            return None
        return [queue_id for queue_id, suspicion in self._suspicions.items() if suspicion.until > now]

    def timed_out(self) -> None:
        """Note that a statement waited in vain: for a queue, or for a row that has no queue yet."""
        caution = self._caution
        caution.seconds = min(max(caution.seconds * 2, _SUSPECT_FIRST_SECONDS), _SUSPECT_MAX_SECONDS)
        caution.until = time.monotonic() + caution.seconds

    def got_all(self) -> None:
        """Note that a statement that may wait has got its locks."""
        self._caution.seconds = 0.0

    def note(self, held: Sequence[QueueId], free: Iterable[QueueId]) -> None:
        """Remember what a statement found held by others, and what it could lock again."""
        for queue_id in free:
            self._suspicions.pop(queue_id, None)
        now = time.monotonic()
        found = [queue_id for queue_id in held if self._is_waited_for(queue_id, now)]
        for queue_id in found:
            known = self._suspicions.pop(queue_id, None)
            seconds = (
                _SUSPECT_FIRST_SECONDS if known is None else min(known.seconds * 2, _SUSPECT_MAX_SECONDS)
            )
            self._suspicions[queue_id] = _Suspicion(until=now + seconds, seconds=seconds)
        while len(self._suspicions) > _SUSPECTS_MAX:
            del self._suspicions[next(iter(self._suspicions))]
        if found:
            QUEUES_HELD.add(count=len(found))
            logger.warning(
                "queues_held",
                extra={
                    "queue_ids": found[:20],
                    "queues": len(found),
                    "reason": "another database session holds rows of them; see docs/runbook.md",
                },
            )

    def _is_waited_for(self, queue_id: QueueId, now: float) -> bool:
        suspicion = self._suspicions.get(queue_id)
        return suspicion is None or suspicion.until <= now
