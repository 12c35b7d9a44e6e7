"""What a service knows about its servers: `/readyz`, the dashboard and the reasons of waiting show it."""

from collections.abc import Mapping
from typing import Protocol


class Health(Protocol):
    """How the servers of a service are."""

    def readiness(self) -> Mapping[str, str | None]:
        """Name each server, with None or why it is unreachable."""

    def degraded(self) -> Mapping[str, str]:
        """Name what does not work though the servers are reachable, and why."""


def broker_trouble(health: Health) -> str | None:
    """Return why nothing can be offered to workers now, or None."""
    return health.readiness().get("broker") or health.degraded().get("broker")
