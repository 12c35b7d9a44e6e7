"""One stage on a real system: what is recorded of it is complete, and everybody saw the same.

All tests share one system; each is a stage of its own, as in a run.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from pydantic import SecretStr

from common.domain.states import Status
from localservers import BrokerServer
from stress.api import Unreachable
from stress.drive.stage import check_ready, drive_stage
from stress.installation import Installation
from stress.mix import DurationMix
from stress.names import ACTIONS_VARIABLE, MARKS_VARIABLE
from stress.progress import Progress
from stress.recording import Recording
from stress.stage import FaultKind, Load, PlannedFault, Purpose, Stage
from stress.tables import NEVER, Answer, Outcome, RunEnd, Table, status_code
from tests.e2e.processes import running

ACTIONS = 2
LIMIT = 2
EXECUTIONS = 200
MIX = DurationMix.parse("80% 0ms, 15% 5ms, 5% 50ms")


def stage(
    *,
    keys: int = 0,
    rate: float | None = None,
    all_wait_first: bool = False,
    drain_without_limit_after: int | None = None,
    faults: tuple[PlannedFault, ...] = (),
) -> Stage:
    load = Load(executions=EXECUTIONS, mix=MIX, actions=ACTIONS, keys=keys, submitters=2, rate=rate)
    return Stage(
        name="test",
        title="A test",
        purpose=Purpose.LOAD,
        load=load,
        limit=LIMIT,
        all_wait_first=all_wait_first,
        drain_without_limit_after=drain_without_limit_after,
        faults=faults,
    )


@asynccontextmanager
async def installation(
    database_url: str, amqp_url: str, marks_folder: Path | None
) -> AsyncIterator[Installation]:
    settings = {ACTIONS_VARIABLE: str(ACTIONS)}
    if marks_folder is not None:
        settings[MARKS_VARIABLE] = str(marks_folder)
    async with running(database_url, amqp_url, actions="stress.actions", settings=settings) as system:
        place = Installation(
            amqp_url=SecretStr(amqp_url), http_urls=(system.http_url,), marks_folder=marks_folder
        )
        await check_ready(place, ACTIONS)
        yield place


async def drive(of: Stage, place: Installation, shown: list[Progress] | None = None) -> Recording:
    show = (lambda progress: None) if shown is None else shown.append
    return await drive_stage(of, place, seed=7, show=show, number=1, stages=1, breaker=None)


def assert_complete(recording: Recording) -> None:
    """Each order became one execution, that one attempt, that one run; all know each other."""
    orders, executions, runs = recording.orders, recording.executions, recording.runs
    assert sorted(executions["number"]) == list(range(EXECUTIONS))
    assert (executions["status"] == status_code(Status.COMPLETED)).all()
    assert (np.diff(executions["execution_id"]) > 0).all()
    by_number = executions[np.argsort(executions["number"])]
    assert (by_number["queue"] == orders["queue"]).all()
    assert (by_number["execution_id"] == orders["execution_id"]).all()
    assert np.isin(orders["answer"], [Answer.ACCEPTED, Answer.DUPLICATE]).all()
    for table in (recording.attempts, runs):
        assert sorted(table["execution_id"]) == executions["execution_id"].tolist()
        assert (table["attempt"] == 1).all()
        assert (sorted_by_id(table)["queue"] == executions["queue"]).all()
    assert (recording.attempts["outcome"] == Outcome.ENDED).all()
    assert len(recording.workers) == 1
    assert (runs["end"] == RunEnd.STOPPED).all()
    assert (sorted_by_id(runs)["number"] == executions["number"]).all()
    assert recording.audit is not None
    assert recording.audit.clean, recording.audit
    assert [each.queue_length + each.active_count for each in recording.counters] == [0] * ACTIONS
    counted = sum(each.completed - each.completed_before for each in recording.counters)
    assert counted == sum(each.enqueued - each.enqueued_before for each in recording.counters) == EXECUTIONS


def assert_ordered(recording: Recording) -> None:
    """What comes first is recorded first, whoever recorded it."""
    orders, runs = recording.orders, sorted_by_id(recording.runs)
    executions, attempts = recording.executions, recording.attempts
    numbers = executions["number"]
    steps = [
        np.full(EXECUTIONS, recording.began_at),
        orders["sent_at"][numbers],
        executions["created_at"],
        attempts["granted_at"],
        attempts["started_at"],
        runs["started_at"],
        runs["stopped_at"],
        attempts["ended_at"],
        np.full(EXECUTIONS, recording.ended_at),
    ]
    for before, after in pairwise(steps):
        assert (before <= after).all()
    assert (executions["created_at"] == attempts["waiting_since"]).all()
    assert (executions["created_at"] <= orders["answered_at"][numbers]).all()
    assert (orders["sent_at"] <= orders["confirmed_at"]).all()
    long = orders["duration_us"][numbers] == 50_000
    # A loop's own clock stands still while it works, so a sleep may be a little short.
    assert (runs["stopped_at"] - runs["started_at"])[long].min() > 40_000_000
    assert (executions["completed_at"] < NEVER).all()


def sorted_by_id(table: Table) -> Table:
    return table[np.argsort(table["execution_id"])]


async def test_a_stage_is_recorded_whole(database_url: str, amqp_url: str, tmp_path: Path) -> None:
    async with installation(database_url, amqp_url, tmp_path) as place:
        shown: list[Progress] = []
        plain = await drive(stage(), place, shown)
        assert_complete(plain)
        assert_ordered(plain)
        assert plain.clock_error_ns == 0
        assert (plain.orders["sendings"] == 1).all()
        assert shown[-1].ended == shown[-1].sent == EXECUTIONS

        # The same actions again, and another token: nothing of the stage before is taken for this one's.
        keyed = await drive(stage(keys=3, all_wait_first=True, drain_without_limit_after=20), place)
        assert_complete(keyed)
        assert_ordered(keyed)
        assert plain.ended_at < keyed.executions["created_at"].max() < keyed.opened_at
        assert keyed.opened_at < keyed.attempts["granted_at"].min()
        assert keyed.samples["waiting"].max() > 0
        assert [change.limit for change in keyed.limit_changes] == [None] * ACTIONS
        assert all(keyed.opened_at < change.asked_at < change.answered_at for change in keyed.limit_changes)


async def test_results_tell_runs_where_no_folder_is_shared(database_url: str, amqp_url: str) -> None:
    async with installation(database_url, amqp_url, None) as place:
        recording = await drive(stage(), place)
    assert_complete(recording)
    assert_ordered(recording)
    assert recording.clock_error_ns == 0


async def test_a_lost_connection_loses_and_doubles_nothing(
    database_url: str, amqp_url: str, rabbitmq: BrokerServer, tmp_path: Path
) -> None:
    vhost = urlsplit(amqp_url).path.removeprefix("/")
    change = PlannedFault(kind=FaultKind.CHANGE_LIMIT, at_seconds=0.2, lasting_seconds=0.3, target=1, limit=1)
    async with installation(database_url, amqp_url, tmp_path) as place, asyncio.TaskGroup() as tasks:
        sent = asyncio.Event()

        def show(progress: Progress) -> None:
            if progress.sent > EXECUTIONS // 4:
                sent.set()

        driving = tasks.create_task(
            drive_stage(
                stage(rate=100, faults=(change,)), place, seed=7, show=show, number=1, stages=1, breaker=None
            )
        )
        await sent.wait()
        assert await asyncio.to_thread(rabbitmq.close_connections, vhost) >= 3
        recording = await driving
    assert sorted(recording.executions["number"]) == list(range(EXECUTIONS))
    assert (recording.executions["status"] == status_code(Status.COMPLETED)).all()
    assert (np.sort(recording.orders["execution_id"]) == recording.executions["execution_id"]).all()
    assert (recording.orders["confirmed_at"] < NEVER).all()
    assert recording.orders["sendings"].max() > 1
    for submitter in range(2):
        ids = recording.orders["execution_id"][recording.orders["submitter"] == submitter]
        assert (np.diff(ids) > 0).all()
    (fault,) = recording.faults
    assert (fault.kind, fault.target) == (FaultKind.CHANGE_LIMIT, "stress.01")
    assert [(change.action, change.limit) for change in recording.limit_changes] == [(1, 1), (1, LIMIT)]


async def test_an_installation_that_is_not_ready_is_told_apart(database_url: str, amqp_url: str) -> None:
    place = Installation(amqp_url=SecretStr(amqp_url), http_urls=("http://127.0.0.1:9",))
    with pytest.raises(Unreachable, match="start `executor serve`"):
        await check_ready(place, ACTIONS)
    async with running(database_url, amqp_url, workers=0) as system:
        place = Installation(amqp_url=SecretStr(amqp_url), http_urls=(system.http_url,))
        with pytest.raises(Unreachable, match=r"worker serve --actions stress\.actions"):
            await check_ready(place, ACTIONS)
        await system.start_worker("stress.actions", **{ACTIONS_VARIABLE: "1"})
        with pytest.raises(Unreachable, match=r"stress\.01.*TURNSTILE_STRESS_ACTIONS=2"):
            await check_ready(place, ACTIONS)
