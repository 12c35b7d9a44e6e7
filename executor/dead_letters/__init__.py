"""Dead letters: messages that no service could use, kept as rows until an operator replays or purges them.

In: the broker's queue `executions.dead_letters`. Out: rows of `dead_letter`, each with the reason and the
instant of its death. Next: `letter` reads and bounds one, `drain` stores them, `desk` is what the API calls;
`executor.retention` prunes them.
"""

from turnstile.executor.dead_letters.desk import DeadLetters, Dealt, Page, Place, Selection
from turnstile.executor.dead_letters.drain import Drain
from turnstile.executor.dead_letters.letter import Letter, StoredLetter

__all__ = ["DeadLetters", "Dealt", "Drain", "Letter", "Page", "Place", "Selection", "StoredLetter"]
