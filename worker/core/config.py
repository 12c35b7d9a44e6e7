"""The settings of a worker's core. Durations are seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker tells the leader about itself, and its bounds."""

    name: str
    pools: tuple[str, ...] = ("default",)
    actions: tuple[str, ...] | None = None
    definitions: tuple[Mapping[str, Any], ...] = ()
    schedules: tuple[Mapping[str, Any], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 10
    lease_seconds: float = 30.0
    heartbeat_seconds: float = 3.0
    drain_seconds: float = 30.0
    """How long a drain lets run what runs."""
    grace_seconds: float = 10.0
    """Between asking a run to stop and killing it."""
    killed_seconds: float = 1.0
    """How long a killed run may take to end; after that it counts as one that cannot be stopped."""
    leave_seconds: float = 10.0
    """How long a drained worker waits for the commit of its last reports."""
    started_after_seconds: float = 0.05
    """The start of a run that ends sooner is not reported."""
    repeat_seconds: float = 2.0
    """Reports are sent again if the leader answers, and has not committed the first of them for so long."""
    repeat_seconds_max: float = 60.0
    """The pause doubles up to this while that does not help."""
    retry_seconds: float = 0.2
    """Before the broker is tried again."""
    kept_bytes_max: int = 64 * 1024 * 1024
    """Nothing starts while the reports that are not committed are larger."""
    batch_max: int = 1000
    """Messages that are taken, or reports that are published, at once."""
    batch_bytes_max: int = 1024 * 1024
    gather_seconds: float = 0.0
    """Shortest time between two writes of reports: in a dense flow each write costs more than a report."""
    run_gather_seconds: float = 0.0
    """How long a start waits for other reports, and an end while the next one of its queue is here."""
