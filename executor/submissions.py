"""Admits what comes over HTTP: in batches, in the order in which it came.

In: requests from any number of callers. Out: one verdict each. What waits for a queue that another database
session holds is kept aside for a bounded time, and admitted before what came later (P2); others pass it (P9).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

import asyncpg

from turnstile.common.batcher import Batcher
from turnstile.common.domain.errors import Unavailable
from turnstile.executor.decisions import Admission, Verdict, held, is_held

PATIENCE_SECONDS: Final = 2.0
"""So long a caller waits for a queue that others hold; it may ask again."""
_ASIDE_MAX: Final = 1000
_PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    admission: Admission
    verdict: "asyncio.Future[Verdict]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Submissions:
    """Safe to share between tasks."""

    def __init__(
        self,
        admit: Callable[[Sequence[Admission]], Awaitable[Sequence[Verdict]]],
        *,
        items_max: int,
        waiting_bytes_max: int | None = None,
    ) -> None:
        self._admit = admit
        # None: what is kept aside is to be tried again.
        self._batches: Batcher[_Asked | None, None] = Batcher(
            self._handle,
            items_max=items_max,
            size_bytes=lambda asked: 0 if asked is None else asked.admission.size_bytes,
            waiting_bytes_max=waiting_bytes_max,
        )
        self._aside: list[_Asked] = []
        self._turn = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Admit until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._batches.run(), name="submission-batches")
            while True:
                await asyncio.sleep(_PAUSE_SECONDS)
                if self._aside:
                    with suppress(Unavailable, asyncpg.PostgresError):
                        await self._batches.submit(None)
        raise AssertionError("ends by cancellation only")

    async def submit_all(self, admissions: Sequence[Admission]) -> list[Verdict]:
        """Admit in the order given; raises Unavailable, also where others hold a queue for too long."""
        asked = [_Asked(admission=admission) for admission in admissions]
        verdicts = [each.verdict for each in asked]
        try:
            await self._batches.submit_all(asked)
            waiting = [verdict for verdict in verdicts if not verdict.done()]
            if waiting:
                await asyncio.wait(waiting, timeout=PATIENCE_SECONDS)
                # Behind the batch under way: what it admits after all must not be answered otherwise.
                async with self._turn:
                    _give_up(verdicts)
            return [
                held(each.admission.action_ref) if each.verdict.cancelled() else each.verdict.result()
                for each in asked
            ]
        finally:
            _give_up(verdicts)

    async def _handle(self, fresh: Sequence[_Asked | None]) -> list[None]:
        async with self._turn:
            await self._admit_in_order(fresh)
        return [None] * len(fresh)

    async def _admit_in_order(self, fresh: Sequence[_Asked | None]) -> None:
        batch = [a for a in (*self._aside, *fresh) if a is not None and not a.verdict.done()]
        try:
            verdicts = await self._admit([asked.admission for asked in batch])
        except BaseException as error:
            # What became of those is unknown too: their callers decide whether to repeat it.
            for asked in self._aside:
                _fail(asked.verdict, error)
            self._aside = []
            raise
        aside: list[_Asked] = []
        for asked, verdict in zip(batch, verdicts, strict=True):
            if asked.verdict.done():
                continue
            if is_held(verdict) and len(aside) < _ASIDE_MAX:
                aside.append(asked)
            else:
                asked.verdict.set_result(verdict)
        self._aside = aside


def _give_up(verdicts: "Sequence[asyncio.Future[Verdict]]") -> None:
    for verdict in verdicts:
        verdict.cancel()


def _fail(verdict: "asyncio.Future[Verdict]", error: BaseException) -> None:
    if verdict.done():
        return
    if isinstance(error, Exception):
        verdict.set_exception(error)
        verdict.exception()  # whoever waits for another one first must leave no warning behind
    else:
        verdict.cancel()
