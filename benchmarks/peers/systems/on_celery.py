"""Celery over RabbitMQ: fast and forgetful, or with late acknowledgements and results in PostgreSQL."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from celery import Celery

from benchmarks.peers.job import (
    ALL_ACTIONS,
    AMQP_URL,
    DATABASE_URL,
    Group,
    Job,
    name_of,
    run_blocking,
    setting,
)
from benchmarks.peers.submitter import Submit

SAFE: Final = "BENCH_CELERY_SAFE"

_FORGETFUL: Final[dict[str, Any]] = {
    "task_ignore_result": True,
    "task_default_delivery_mode": "transient",
}
_SAFE: Final[dict[str, Any]] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "broker_transport_options": {"confirm_publish": True},
}


def _app() -> Celery:
    app = Celery("bench", broker=setting(AMQP_URL), set_as_current=True)
    if SAFE in os.environ:
        results = setting(DATABASE_URL).replace("postgresql://", "db+postgresql+psycopg://", 1)
        app.conf.update(_SAFE, result_backend=results)
    else:
        app.conf.update(_FORGETFUL)
    return app


app: Final = _app()
tasks: Final = {
    (group, number): app.task(name=name_of(group, number))(run_blocking) for group, number in ALL_ACTIONS
}


async def prepare() -> None:
    """Nothing: the worker declares its queue, and the results' tables."""


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Publish over one connection that stays open."""
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            for job in jobs:
                tasks[group, job.action].apply_async(args=tuple(job), producer=producer)

        yield submit_all
