"""A private installation for one run: started, broken, repaired, stopped.

The services have the product's default settings except for the lease, so that users get what is measured.
When the context ends, or this process dies in any way, nothing of the installation is left.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx
from pydantic import SecretStr

from turnstile.localservers import running_servers
from turnstile.stress.installation import Api, Installation
from turnstile.stress.local.faults import LocalSystem, watching_exits
from turnstile.stress.local.launcher import Deployment, create_database_and_vhost, running_system
from turnstile.stress.trace import ACTIONS_VARIABLE, TRACE_VARIABLE

_NAME: Final = "stress"
_ACTIONS_MODULE: Final = "turnstile.stress.actions"
_HEARTBEATS_PER_LEASE: Final = 3


@asynccontextmanager
async def running_locally(
    *,
    executors: int,
    workers: int,
    concurrency: int,
    actions: int,
    lease_seconds: float,
    say: Callable[[str], object],
) -> AsyncIterator[LocalSystem]:
    """Run an installation; everything is ready on entry and gone on exit. Raises LocalServersError."""
    say("Starting PostgreSQL and RabbitMQ in a scratch folder")
    async with running_servers() as servers:
        database_url, amqp_url = await create_database_and_vhost(servers.postgresql, servers.rabbitmq, _NAME)
        trace_folder = servers.folder / "services" / "traces"
        trace_folder.mkdir(parents=True)
        deployment = Deployment(
            database_url=database_url,
            amqp_url=amqp_url,
            folder=servers.folder / "services" / "logs",
            settings={
                "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
                "TURNSTILE_HEARTBEAT_INTERVAL": f"{lease_seconds / _HEARTBEATS_PER_LEASE:.3f}s",
                "TURNSTILE_LOG_LEVEL": "WARNING",
            },
        )
        say(f"Starting {_counted(executors, 'executor')} and {_counted(workers, 'worker')}")
        settings = {
            ACTIONS_VARIABLE: str(actions),
            TRACE_VARIABLE: str(trace_folder),
            "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
        }
        executor_services = [deployment.executor(f"executor-{n}") for n in range(1, executors + 1)]
        worker_services = [
            deployment.worker(f"worker-{n}", actions=_ACTIONS_MODULE, settings=settings)
            for n in range(1, workers + 1)
        ]
        async with (
            running_system(deployment, executor_services, worker_services, restart_failed=True) as system,
            httpx.AsyncClient(trust_env=False) as http,
            watching_exits(trace_folder) as watch,
        ):
            installation = Installation(
                amqp_url=SecretStr(amqp_url),
                http_urls=tuple(executor.url for executor in system.executors),
                trace_folder=trace_folder,
                lease_seconds=lease_seconds,
            )
            async with Api(installation) as api:
                yield LocalSystem(
                    installation=installation, servers=servers, system=system, api=api, http=http, watch=watch
                )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
