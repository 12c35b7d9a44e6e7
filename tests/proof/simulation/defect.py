"""A planted bug: a change of the text of one module, the stories that show it, and what they show."""

from dataclasses import dataclass
from typing import Final

_LEADER: Final = "turnstile.executor.leader"
_QUEUE_MANAGER: Final = "turnstile.executor.queue_manager"
_WORKER: Final = "turnstile.worker.core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One planted bug."""

    name: str
    """What is wrong."""
    module: str
    kinds: tuple[str, ...]
    """Kinds of the stories that show it."""
    symptom: str
    """What they show, as a regular expression."""
    changes: tuple[str, ...]
    """As `tests.proof.planted` reads them."""


def in_leader(name: str, module: str, kinds: str, symptom: str, *changes: str) -> Defect:
    return _defect(name, f"{_LEADER}.{module}", kinds, symptom, changes)


def in_decision(name: str, module: str, kinds: str, symptom: str, *changes: str) -> Defect:
    return _defect(name, f"{_QUEUE_MANAGER}.{module}", kinds, symptom, changes)


def in_worker(name: str, module: str, kinds: str, symptom: str, *changes: str) -> Defect:
    return _defect(name, f"{_WORKER}.{module}", kinds, symptom, changes)


def _defect(name: str, module: str, kinds: str, symptom: str, changes: tuple[str, ...]) -> Defect:
    kind_names = tuple(each.strip() for each in kinds.split(","))
    return Defect(name=name, module=module, kinds=kind_names, symptom=symptom, changes=changes)
