"""Names that have moved to `executor.health` and `queries.stopping`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnstile.executor.health import Health as Health
from turnstile.executor.queries.schemas import Stopping
from turnstile.executor.queries.stopping import Run

if TYPE_CHECKING:
    import asyncpg


def stopping_of(row: "asyncpg.Record | Mapping[str, Any]", enforced_seconds: float) -> Stopping | None:
    """Return how a running execution is being stopped; None: it has not been asked to, or does not run."""
    return Run(**{name: row[name] for name in Run.__dataclass_fields__}).stopping(enforced_seconds)
