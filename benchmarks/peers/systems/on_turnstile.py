"""This project: actions, requests published in batches and confirmed by the broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.client import database_session, publishing, submit
from benchmarks.peers.job import ALL_ACTIONS, AMQP_URL, DATABASE_URL, Group, Job, name_of, run, setting
from benchmarks.peers.submitter import Submit
from benchmarks.waiting import until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionRequested
from turnstile.migrations.run import migrate
from turnstile.worker import action

_READY_SECONDS: Final = 60.0
_ACTIONS: Final = "SELECT count(*) FROM ledger.definition WHERE kind = 'action'"


def _declare(group: Group, number: int) -> None:
    async def job(load: int, action: int, number: int, held: bool, seconds: float) -> None:
        await run(load, action, number, held, seconds)

    action(name_of(group, number), max_concurrent=group.limit)(job)


for _group, _number in ALL_ACTIONS:
    _declare(_group, _number)


async def prepare() -> None:
    """Bring the database to this version."""
    await migrate(setting(DATABASE_URL))


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Connect, and wait until the workers have registered their actions."""
    async with database_session(setting(DATABASE_URL)) as session, publishing(setting(AMQP_URL)) as publisher:

        async def registered() -> bool:
            return bool(await session.fetchval(_ACTIONS) >= len(ALL_ACTIONS))

        await until(registered, "the actions exist", deadline_seconds=_READY_SECONDS, pause_seconds=0.05)

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            await submit(publisher, [_request(group, job) for job in jobs])

        yield submit_all


def _request(group: Group, job: Job) -> Outgoing:
    return envelope(
        ExecutionRequested(action_ref=name_of(group, job.action), parameters=job._asdict()),
        message_type=EXECUTION_REQUESTED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_REQUESTED,
        app_id="client",
    )
