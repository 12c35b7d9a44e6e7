"""One scenario on a real system, with workers that write traces: its recording is complete and consistent.

Most tests share one system; each is a scenario of its own, as in a run: the same actions, another token.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import numpy as np
import pytest
import pytest_asyncio
from pydantic import SecretStr

from tests.support.processes import System, running
from turnstile.stress.check.rules import check_recording
from turnstile.stress.drive.driver import drive_scenario
from turnstile.stress.drive.setup import check_ready
from turnstile.stress.installation import Installation, Unreachable
from turnstile.stress.recording import NEVER, NONE, Recording, RunEnd
from turnstile.stress.scenario import (
    DurationMix,
    FaultKind,
    Load,
    PlannedFault,
    Progress,
    Scenario,
    Show,
)
from turnstile.stress.trace import ACTIONS_VARIABLE, TRACE_VARIABLE

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACTIONS = 2
LIMIT = 2
EXECUTIONS = 200
MIX = DurationMix.parse("80% 0ms, 15% 5ms, 5% 50ms")


def scenario(
    *,
    keys: int = 0,
    rate: float | None = None,
    all_wait_first: bool = False,
    faults: tuple[PlannedFault, ...] = (),
) -> Scenario:
    load = Load(executions=EXECUTIONS, mix=MIX, actions=ACTIONS, keys=keys, submitters=2, rate=rate)
    return Scenario(
        name="test",
        title="A test",
        load=load,
        limit=LIMIT,
        all_wait_first=all_wait_first,
        faults=faults,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(module_urls: tuple[str, str]) -> AsyncIterator[System]:
    """One executor, and no worker yet."""
    async with running(*module_urls, workers=0) as system:
        yield system


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installation(system: System, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Two workers: one with a trace folder, as on this host, one without, as on other hosts."""
    folder = tmp_path_factory.mktemp("traces")
    count = {ACTIONS_VARIABLE: str(ACTIONS)}
    await asyncio.gather(
        system.start_worker("turnstile.stress.actions", **count, **{TRACE_VARIABLE: str(folder)}),
        system.start_worker("turnstile.stress.actions", **count),
    )
    return replace(at(system), trace_folder=folder)


def at(system: System) -> Installation:
    return Installation(amqp_url=SecretStr(system.amqp_url), http_urls=(system.http_url,))


async def drive(of: Scenario, installation: Installation, *, show: Show = lambda _: None) -> Recording:
    return await drive_scenario(of, installation, seed=7, show=show, injector=None)


def assert_complete(recording: Recording) -> None:
    """Each request has one execution, one attempt and one run, all agree, and each event is in its order."""
    assert check_recording(recording).broken == ()
    assert sorted(recording.executions["number"]) == list(range(EXECUTIONS))
    has_started = recording.attempts["started_at"] != NEVER
    assert has_started.sum() == len(recording.runs) == EXECUTIONS
    assert (recording.runs["end"] == RunEnd.STOPPED).all()
    assert recording.audit is not None
    durations = recording.orders["duration_us"][recording.runs["number"]]
    ran_ns = recording.runs["stopped_at"] - recording.runs["started_at"]
    # The clock of a busy event loop is late, so a sleep may be slightly short.
    assert ran_ns[durations == 50_000].min() > 40_000_000


async def test_a_missing_part_is_reported_before_any_request_is_sent(system: System, amqp_url: str) -> None:
    """Runs first, while the system has no worker."""
    empty_vhost = replace(at(system), amqp_url=SecretStr(amqp_url))
    with pytest.raises(Unreachable, match="start `executor serve`"):
        await check_ready(empty_vhost, ACTIONS)
    with pytest.raises(Unreachable, match=r"worker serve --actions turnstile\.stress\.actions"):
        await check_ready(at(system), ACTIONS)


async def test_the_recording_of_a_scenario_is_complete(installation: Installation) -> None:
    await check_ready(installation, ACTIONS)
    with pytest.raises(Unreachable, match=r"stress\.02.*TURNSTILE_STRESS_ACTIONS=3"):
        await check_ready(installation, 3)
    shown: list[Progress] = []
    recording = await drive(scenario(), installation, show=shown.append)
    assert_complete(recording)
    assert len(recording.workers) == len(np.unique(recording.runs["process"])) == 2
    assert recording.clock_error_ns == 0
    assert (recording.orders["sendings"] == 1).all()
    assert shown[-1].ended == shown[-1].sent == EXECUTIONS


async def test_all_executions_wait_until_the_actions_are_resumed(installation: Installation) -> None:
    """Also: queues by keys."""
    recording = await drive(scenario(keys=3, all_wait_first=True), installation)
    assert_complete(recording)
    opened_at = recording.opened_at
    assert recording.executions["created_at"].max() < opened_at < recording.attempts["granted_at"].min()


async def test_limits_are_changed_and_others_submit_while_orders_arrive_in_step(
    installation: Installation,
) -> None:
    rate = 250.0
    change = PlannedFault(kind=FaultKind.CHANGE_LIMIT, at_seconds=0.2, lasting_seconds=0.3, target=1, limit=1)
    submitted: list[asyncio.Task[httpx.Response]] = []
    async with httpx.AsyncClient() as http:

        def submit_once(progress: Progress) -> None:
            if not submitted and progress.sent:
                foreign = {"action_ref": "stress.00", "parameters": {"number": 7, "milliseconds": 0}}
                url = f"{installation.http_urls[0]}/api/v1/executions"
                submitted.append(asyncio.create_task(http.post(url, json=foreign)))

        recording = await drive(scenario(rate=rate, faults=(change,)), installation, show=submit_once)
        foreign_id = (await submitted[0]).json()["id"]

    executions, runs = recording.executions, recording.runs
    assert sorted(executions["number"]) == [NONE, *range(EXECUTIONS)]
    for table in (executions, runs):
        assert table["number"][table["execution_id"] == foreign_id].tolist() == [NONE]
    (fault,) = recording.faults
    changed, restored = recording.limit_changes
    assert (fault.kind, fault.target) == (FaultKind.CHANGE_LIMIT, "stress.01")
    assert (fault.began_at, fault.healed_at) == (changed.asked_at, restored.answered_at)
    assert [(each.action, each.limit) for each in (changed, restored)] == [(1, 1), (1, LIMIT)]
    assert restored.asked_at - changed.asked_at >= 300_000_000
    sent_at = recording.orders["sent_at"]
    # From the beginning: the first sender may start last.
    due_at = recording.began_at + np.arange(EXECUTIONS) / rate * 1e9
    assert (sent_at - due_at).min() > -10_000_000, "nothing is sent before it is due"
