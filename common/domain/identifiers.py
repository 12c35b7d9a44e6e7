"""Identifiers, as distinct types."""

from typing import NamedTuple, NewType

ExecutionId = NewType("ExecutionId", int)
"""The arrival order: a smaller id was admitted earlier."""
Attempt = NewType("Attempt", int)
"""Number of the attempt, from 1: each grant is one."""


class Grant(NamedTuple):
    """The number of one grant. It is never used again, so a report that names it cannot be about another."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"
