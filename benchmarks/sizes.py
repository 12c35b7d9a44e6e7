"""How much each part does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All parts together take under four minutes on two quiet cores at these values."""

    executions: int = 10_000
    """Executions of one throughput run."""
    rounds: int = 1
    """Throughput runs of each kind, one after the other in turn; medians are shown."""
    queued: int = 500
    """Executions handed over one after the other."""
    submits: int = 200
    """Executions submitted one at a time."""
    depths: tuple[int, ...] = (100, 10_000, 100_000, 1_000_000)
    """Waiting executions beside which a grant is timed; the first is what the others are compared with."""
    turns: int = 200
    """Timed statements of each kind."""
    waiting: int = 100_000
    """Waiting executions beside which memory is read."""
    messages: int = 10_000
    """Messages of one transport run."""
    deadline_seconds: float = 120.0
    """When a run that does not end is given up."""
