"""What is asked of every contestant alike: three groups of actions, and jobs that do nothing.

In: nothing; these are values. Out: what `systems` declare, what `submitter` asks for and `session` waits for.
"""

from enum import StrEnum
from typing import Final, NamedTuple

ACTIONS: Final = 10
LIMIT: Final = 4


class Group(StrEnum):
    """Actions under one rule; each group is a load of its own."""

    FREE = "free"
    """Ten actions without a limit."""
    LIMITED = "limited"
    """Ten actions, each under a limit of four; of one where the system knows no other."""
    SINGLE = "single"
    """One action, one at a time."""

    @property
    def actions(self) -> int:
        """How many actions it has."""
        return 1 if self is Group.SINGLE else ACTIONS

    @property
    def limit(self) -> int | None:
        """How many jobs of one of its actions may run at once."""
        return {Group.FREE: None, Group.LIMITED: LIMIT, Group.SINGLE: 1}[self]


class Job(NamedTuple):
    """One job: its fields are what travels as its arguments."""

    load: int
    """Which of the loads of a session it belongs to."""
    action: int
    number: int
    """Its place in the order of submitting."""
    held: bool
    """It runs until all others of its load have been submitted."""


def jobs_of(load: int, group: Group, count: int) -> list[Job]:
    """Return the jobs of a load: the actions take turns; of a single action the first job is held."""
    return [
        Job(load, number % group.actions, number, held=group is Group.SINGLE and number == 0)
        for number in range(count)
    ]


def name_of(group: Group, action: int) -> str:
    """Return the name of an action, the same in every system."""
    return f"{group}.{action}"


ALL_ACTIONS: Final = tuple((group, action) for group in Group for action in range(group.actions))
