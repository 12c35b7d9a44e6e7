"""Reads the executions and attempts of a scenario over the API, after it is over."""

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np

from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.drive.pacing import instant
from turnstile.stress.drive.traces import RemoteRun, remote_run
from turnstile.stress.installation import Api, Json
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    NONE,
    NOT_ENDED,
    STAY,
    Outcome,
    Table,
    status_code,
)
from turnstile.stress.scenario import Load
from turnstile.stress.trace import POOL, action_ref

_CODES: Final = {str(status): status_code(status) for status in Status}
_ENDED_BY_ITS_ONLY_ATTEMPT: Final = frozenset({Status.COMPLETED, Status.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioHistory:
    """The executions and attempts of a scenario."""

    executions: Table
    attempts: Table
    stays: Table
    gate_names: tuple[str, ...]
    workers: tuple[str, ...]
    remote_runs: tuple[RemoteRun, ...]


async def read_scenario_history(api: Api, load: Load, *, token: str, after_id: int) -> ScenarioHistory:
    """Return all later executions of the stress actions; those of another token have no number.

    The list contains the attempt of an execution that ended with its first one; others are read one by one.
    """
    reading = _Reading(load, token)
    async for page in api.executions(after_id=after_id):
        async with asyncio.TaskGroup() as tasks:
            reads = [
                tasks.create_task(api.execution(item["id"]), name=f"attempts-of-{item['id']}")
                for item in reading.take(page)
            ]
        for each in reads:
            reading.take_attempts(each.result())
    return reading.result()


class _Reading:
    """Collects pages of executions."""

    def __init__(self, load: Load, token: str) -> None:
        self._keys = load.keys
        self._token = token
        self._action_of = {action_ref(number): number for number in range(load.actions)}
        self._executions: list[Table] = [np.empty(0, EXECUTION)]
        self._attempts: list[Table] = [np.empty(0, ATTEMPT)]
        self._stays: list[tuple[int, ...]] = []
        self._gates: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._remote_runs: list[RemoteRun] = []

    def take(self, page: list[Json]) -> list[Json]:
        """Add a page; return the executions whose attempts must be read separately."""
        ours = [item for item in page if item["action_ref"].startswith(f"{POOL}.")]
        rows = []
        attempts = []
        open_ended = []
        for item in ours:
            parameters = item["parameters"]
            number = parameters["number"] if parameters.get("scenario") == self._token else NONE
            queue, attempt = self._queue_of(item), item["attempt"]
            created_at, completed_at = instant(item["created_at"]), instant(item["completed_at"])
            code = _CODES[item["status"]]
            rows.append((item["id"], number, queue, code, attempt, created_at, completed_at))
            if attempt == 1 and item["status"] in _ENDED_BY_ITS_ONLY_ATTEMPT:
                granted_at, started_at = instant(item["scheduled_at"]), instant(item["started_at"])
                worker = self._worker(item["worker_id"])
                times = created_at, granted_at, started_at, completed_at
                attempts.append((item["id"], 1, queue, *times, Outcome.ENDED, worker))
            elif attempt:
                open_ended.append(item)
            self._take_stays(item)
            if item["result"] is not None:
                self._remote_runs.append(remote_run(item, number=number, queue=queue))
        self._executions.append(np.array(rows, EXECUTION))
        self._attempts.append(np.array(attempts, ATTEMPT))
        return open_ended

    def _take_stays(self, item: Json) -> None:
        steps = item.get("gates", ())
        if any(step["passed_at"] is None for step in steps):
            # It ended at a gate: to the replay, an execution whose gates are unknown.
            return
        for step in steps:
            gate = self._gates.setdefault(step["gate"], len(self._gates))
            times = instant(step["arrived_at"]), instant(step["passed_at"])
            self._stays.append((item["id"], gate, step["units"], *times, item["priority"]))

    def take_attempts(self, item: Json) -> None:
        """Add the attempts of one execution."""
        rows = []
        queue, waiting_since = self._queue_of(item), instant(item["created_at"])
        known = {each["attempt"] for each in item["attempts"]}
        for each in item["attempts"]:
            ended_at = instant(each["ended_at"])
            outcome = Outcome.OPEN if ended_at == NEVER else NOT_ENDED.get(each["outcome"], Outcome.ENDED)
            times = waiting_since, instant(each["granted_at"]), instant(each["started_at"]), ended_at
            rows.append(
                (item["id"], each["attempt"], queue, *times, outcome, self._worker(each["worker_id"]))
            )
            waiting_since = ended_at
        if item["attempt"] not in known:
            # Granted but not started: the API lists attempts from their start on.
            ended_at = instant(item["completed_at"])
            outcome = Outcome.ENDED if item["status"] in TERMINAL else Outcome.OPEN
            times = waiting_since, instant(item["scheduled_at"]), NEVER, ended_at
            worker = self._worker(item["worker_id"])
            rows.append((item["id"], item["attempt"], queue, *times, outcome, worker))
        self._attempts.append(np.array(rows, ATTEMPT))

    def result(self) -> ScenarioHistory:
        """Return everything in the order of ids."""
        executions, attempts = np.concatenate(self._executions), np.concatenate(self._attempts)
        stays = np.array(self._stays, STAY)
        return ScenarioHistory(
            executions=executions[np.argsort(executions["execution_id"], kind="stable")],
            attempts=attempts[np.lexsort((attempts["attempt"], attempts["execution_id"]))],
            # Stable: the stays of one execution keep the order of its route.
            stays=stays[np.argsort(stays["execution_id"], kind="stable")],
            gate_names=tuple(self._gates),
            workers=tuple(self._workers),
            remote_runs=tuple(self._remote_runs),
        )

    def _queue_of(self, item: Json) -> int:
        """Return the number of its queue; NONE: not of this scenario."""
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
