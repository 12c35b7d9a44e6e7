"""Turns the rows that break a rule into a finding.

In: rows, and how to say what is wrong with one. Out: a `Finding` with a few sentences. Next: `judge`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.tables import Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Rows that break a rule in one way; `sentence` tells of one of them."""

    rows: Instants
    sentence: Callable[[int], str]


def breach(broken: NDArray[np.bool_], sentence: Callable[[int], str]) -> Breach:
    """Return what is broken wherever the mask says so."""
    return Breach(rows=np.flatnonzero(broken).astype(np.int64), sentence=sentence)


def finding(rule: Rule, looked_at: int, *breaches: Breach) -> Finding:
    """Return what came of a rule; examples of every way to break it come before more of one."""
    examples = [
        one.sentence(int(one.rows[nth]))
        for nth in range(EXAMPLES_MAX)
        for one in breaches
        if nth < len(one.rows)
    ]
    return Finding(
        rule=rule,
        looked_at=looked_at,
        broken=sum(len(one.rows) for one in breaches),
        examples=tuple(examples[:EXAMPLES_MAX]),
    )
