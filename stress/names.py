"""The names under which the harness and its actions know each other.

In: the number of an action. Out: its ref. Imported by the workers too, so it imports nothing.
"""

from typing import Final

POOL: Final = "stress"
"""Of all actions of the harness: they never reach anybody's own workers."""
ACTIONS_VARIABLE: Final = "TURNSTILE_STRESS_ACTIONS"
"""How many actions a worker declares."""
ACTIONS_DEFAULT: Final = 10
MARKS_VARIABLE: Final = "TURNSTILE_STRESS_MARKS"
"""The folder into which actions write when they start and stop; unset: they tell it in their results."""


def action_ref(number: int) -> str:
    """Return what the action of this number is called."""
    return f"{POOL}.{number:02}"
