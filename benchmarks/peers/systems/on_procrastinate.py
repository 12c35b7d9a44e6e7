"""Procrastinate over PostgreSQL; its lock is a limit of one, and it knows no other."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from procrastinate import App, PsycopgConnector

from benchmarks.peers.job import ALL_ACTIONS, DATABASE_URL, Group, Job, name_of, run, setting
from benchmarks.peers.submitter import Submit

_CONNECTIONS: Final = 20
_BATCH: Final = 500

app: Final = App(
    connector=PsycopgConnector(conninfo=setting(DATABASE_URL), min_size=_CONNECTIONS, max_size=_CONNECTIONS)
)


def _declare(group: Group, number: int) -> None:
    async def job(load: int, action: int, number: int, held: bool, seconds: float) -> None:
        await run(load, action, number, held, seconds)

    name = name_of(group, number)
    app.task(name=name, lock=None if group.limit is None else name)(job)


for _group, _number in ALL_ACTIONS:
    _declare(_group, _number)


async def prepare() -> None:
    """Create its tables."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Defer in batches; a batch is of one action, so the actions take turns by batches."""
    async with app.open_async():

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            for action in range(group.actions):
                of_action = [job._asdict() for job in jobs if job.action == action]
                deferrer = app.tasks[name_of(group, action)].configure()
                for start in range(0, len(of_action), _BATCH):
                    await deferrer.batch_defer_async(*of_action[start : start + _BATCH])

        yield submit_all
