"""The messages that nobody could use: looked at, sent again or thrown away when an operator says so.

In: the queue `executions.dead_letters`. Out: `Letter`s, with the reason and the time of death. Nothing is
lost by looking (P5): a look holds the letters unacknowledged and gives them back; only what was sent again
and confirmed, or thrown away on purpose, is acknowledged. Next: `letter` reads one, `look` holds them all,
`desk` is what the API calls.
"""

from executor.dead_letters.desk import DeadLetters, Dealt, Page, Selection
from executor.dead_letters.letter import Letter
from executor.dead_letters.look import LETTERS_MAX

__all__ = ["LETTERS_MAX", "DeadLetters", "Dealt", "Letter", "Page", "Selection"]
