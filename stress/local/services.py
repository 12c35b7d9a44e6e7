"""What runs in a private installation: executors and workers as anybody would set them up.

In: where they belong and how many. Out: `Service`s that are not started yet. Their settings are the product's
own but for the lease, so that what is measured is what users get.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import turnstile
from turnstile.localservers.ports import free_port
from turnstile.localservers.services import Service, environment_without
from turnstile.stress.names import ACTIONS_VARIABLE, MARKS_VARIABLE

_ACTIONS_MODULE: Final = "turnstile.stress.actions"
_HEARTBEATS_IN_A_LEASE: Final = 3
_SOURCE: Final = Path(turnstile.__file__).parents[1]
"""What the services import lies where we do, in a checkout as in an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where services belong, and what all of them are told."""

    database_url: str
    amqp_url: str
    logs_folder: Path
    marks_folder: Path
    lease_seconds: float

    def environment(self) -> dict[str, str]:
        """Return the environment of any process of this installation."""
        return {
            # The user's own settings are for another system.
            **environment_without("TURNSTILE_", importable=_SOURCE),
            "TURNSTILE_DATABASE_URL": self.database_url,
            "TURNSTILE_AMQP_URL": self.amqp_url,
            "TURNSTILE_LEASE_DURATION": f"{self.lease_seconds}s",
            "TURNSTILE_HEARTBEAT_INTERVAL": f"{self.lease_seconds / _HEARTBEATS_IN_A_LEASE:.3f}s",
            "TURNSTILE_LOG_LEVEL": "WARNING",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All that we run ourselves."""

    executors: tuple[Service, ...]
    workers: tuple[Service, ...]

    @property
    def all(self) -> tuple[Service, ...]:
        """Executors first: workers have somebody to talk to."""
        return (*self.executors, *self.workers)


def executors_of(place: Place, *, count: int) -> tuple[Service, ...]:
    """Return the executors, each on a port of its own."""
    return tuple(_executor(place, f"executor-{number}") for number in range(1, count + 1))


def workers_of(place: Place, *, count: int, concurrency: int, actions: int) -> tuple[Service, ...]:
    """Return the workers, which serve so many actions of the harness."""
    served = {
        ACTIONS_VARIABLE: str(actions),
        MARKS_VARIABLE: str(place.marks_folder),
        "TURNSTILE_WORKER_CONCURRENCY": str(concurrency),
    }
    return tuple(_worker(place, f"worker-{number}", served) for number in range(1, count + 1))


def _executor(place: Place, name: str) -> Service:
    port = free_port()
    return Service(
        name=name,
        arguments=["turnstile.executor.cli", "serve"],
        folder=place.logs_folder,
        environment={**place.environment(), "TURNSTILE_HTTP_PORT": str(port)},
        port=port,
    )


def _worker(place: Place, name: str, served: dict[str, str]) -> Service:
    port = free_port()
    own = {"TURNSTILE_WORKER_NAME": name, "TURNSTILE_WORKER_HTTP_PORT": str(port)}
    return Service(
        name=name,
        arguments=["turnstile.worker.cli", "serve", "--actions", _ACTIONS_MODULE],
        folder=place.logs_folder,
        environment={**place.environment(), **served, **own},
        port=port,
    )
