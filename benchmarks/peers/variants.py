"""What a contestant is: a system, and the configurations in which it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers.loads import LIMIT, Group

_ALL: Final = tuple(Group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Processes of one kind: `python -m` and these arguments."""

    name: str
    arguments: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration of a system; a row in each table of a group it takes part in."""

    name: str
    programs: tuple[Program, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = _ALL
    limited_to: int = LIMIT
    """The limit that its `limited` actions really have."""
    configuration: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One system."""

    name: str
    module: str
    packages: tuple[str, ...]
    """Whose versions are printed; the first is the system's own. None: this project."""
    imports: tuple[str, ...]
    """What must be importable for it to take part."""
    variants: tuple[Variant, ...]
    submits: str
    results: str
    """What becomes of results."""
    crash: str
    """What becomes of a job whose worker is killed, and of what waits when the servers are."""
    limits: str
    needs_redis: bool = False
