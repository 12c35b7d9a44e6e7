"""Reads back what the installation recorded of a stage.

In: the executions that are newer than the stage, page by page. Out: tables of executions and attempts, and
what actions on other hosts told in their results. What was granted once is known from the list; what was
granted more often, or has not ended, is asked for one by one. Next: `runs`.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np

from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.api import Api, Json
from turnstile.stress.drive.clock import instant
from turnstile.stress.drive.told import ToldRun, told_run
from turnstile.stress.names import POOL, action_ref
from turnstile.stress.stage import Load
from turnstile.stress.tables import ATTEMPT, EXECUTION, NEVER, NONE, Outcome, Table, status_code

_CODES: Final = {str(status): status_code(status) for status in Status}
_ENDED_BY_ITS_ONLY_ATTEMPT: Final = frozenset({Status.COMPLETED, Status.FAILED})
_OUTCOMES: Final = {
    "retried": Outcome.RETRIED,
    "reclaimed": Outcome.RECLAIMED,
    "handed_back": Outcome.HANDED_BACK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the installation knows."""

    executions: Table
    attempts: Table
    workers: tuple[str, ...]
    told: tuple[ToldRun, ...]


async def read_record(api: Api, load: Load, *, token: str, after_id: int) -> Record:
    """Return all later executions of the harness's actions; those of another token have no number."""
    reading = _Reading(load, token)
    async for page in api.executions(after_id=after_id):
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(api.execution(item["id"]), name=f"attempts-of-{item['id']}")
                for item in reading.take(page)
            ]
        for each in asked:
            reading.take_attempts(each.result())
    return reading.result()


class _Reading:
    """The pages so far."""

    def __init__(self, load: Load, token: str) -> None:
        self._keys = load.keys
        self._token = token
        self._action_of = {action_ref(number): number for number in range(load.actions)}
        self._executions: list[Table] = [np.empty(0, EXECUTION)]
        self._attempts: list[Table] = [np.empty(0, ATTEMPT)]
        self._workers: dict[str, int] = {}
        self._told: list[ToldRun] = []

    def take(self, page: list[Json]) -> list[Json]:
        """Take a page; return those of it whose attempts it does not tell."""
        ours = [item for item in page if item["action_ref"].startswith(f"{POOL}.")]
        rows = []
        attempts = []
        open_ended = []
        for item in ours:
            parameters = item["parameters"]
            number = parameters["number"] if parameters.get("stage") == self._token else NONE
            queue, attempt = self._queue_of(item), item["attempt"]
            created_at, completed_at = instant(item["created_at"]), instant(item["completed_at"])
            code = _CODES[item["status"]]
            rows.append((item["id"], number, queue, code, attempt, created_at, completed_at))
            if attempt == 1 and item["status"] in _ENDED_BY_ITS_ONLY_ATTEMPT:
                granted_at, started_at = instant(item["scheduled_at"]), instant(item["started_at"])
                worker = self._worker(item["worker_id"])
                attempts.append(
                    (
                        item["id"],
                        1,
                        queue,
                        created_at,
                        granted_at,
                        started_at,
                        completed_at,
                        Outcome.ENDED,
                        worker,
                    )
                )
            elif attempt:
                open_ended.append(item)
            if item["result"] is not None:
                self._told += told_run(item, number=number, queue=queue)
        self._executions.append(np.array(rows, EXECUTION))
        self._attempts.append(np.array(attempts, ATTEMPT))
        return open_ended

    def take_attempts(self, item: Json) -> None:
        """Take what one execution says of each of its attempts."""
        rows = []
        queue, waiting_since = self._queue_of(item), instant(item["created_at"])
        known = {each["attempt"] for each in item["attempts"]}
        for each in item["attempts"]:
            ended_at = instant(each["ended_at"])
            rows.append(
                (
                    item["id"],
                    each["attempt"],
                    queue,
                    waiting_since,
                    instant(each["granted_at"]),
                    instant(each["started_at"]),
                    ended_at,
                    Outcome.OPEN if ended_at == NEVER else _OUTCOMES.get(each["outcome"], Outcome.ENDED),
                    self._worker(each["worker_id"]),
                )
            )
            waiting_since = ended_at
        if item["attempt"] not in known:
            # Granted, and claimed by nobody: the history of attempts begins with the claim.
            ended_at = instant(item["completed_at"])
            outcome = Outcome.ENDED if item["status"] in TERMINAL else Outcome.OPEN
            granted_at = instant(item["scheduled_at"])
            rows.append(
                (
                    item["id"],
                    item["attempt"],
                    queue,
                    waiting_since,
                    granted_at,
                    NEVER,
                    ended_at,
                    outcome,
                    NONE,
                )
            )
        self._attempts.append(np.array(rows, ATTEMPT))

    def result(self) -> Record:
        """Return everything in the order of the ids."""
        executions, attempts = np.concatenate(self._executions), np.concatenate(self._attempts)
        return Record(
            executions=executions[np.argsort(executions["execution_id"], kind="stable")],
            attempts=attempts[np.lexsort((attempts["attempt"], attempts["execution_id"]))],
            workers=tuple(self._workers),
            told=tuple(self._told),
        )

    def _queue_of(self, item: Json) -> int:
        """Return the number of its queue; NONE: it is none of the stage's."""
        action = self._action_of.get(item["action_ref"], NONE)
        key = item["concurrency_key"]
        if action == NONE or (key is None) != (self._keys == 0):
            return NONE
        if key is None:
            return action
        number = int(key) if key.isascii() and key.isdigit() else NONE
        return action * self._keys + number if 0 <= number < self._keys else NONE

    def _worker(self, worker_id: str | None) -> int:
        return NONE if worker_id is None else self._workers.setdefault(worker_id, len(self._workers))
