"""Holds a recording against the promises: one rule per function, each in the module of its promise.

In: a `Recording` and `Tolerances`. Out: `Violation`s, none for a history as it should be. Pure: the same
recording has the same verdict for ever. Next: `limit` (P1), `order` (P2), `ends` (P3), `telling` (P4),
`keeping` (P5), `fence` (P6), `healing` (P7); `figures` measures instead of judging.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tests.history.ends import lives_are_legal
from tests.history.recording import Recording
from tests.history.tolerances import Tolerances, Violation

Rule: TypeAlias = Callable[[Recording, Tolerances], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (lives_are_legal,)


def violations(recording: Recording, *, tolerances: Tolerances) -> list[Violation]:
    """Return everything that breaks a promise."""
    return [violation for rule in RULES for violation in rule(recording, tolerances)]
