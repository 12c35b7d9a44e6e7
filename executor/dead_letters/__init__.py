"""Dead letters: messages that no service could use, kept as rows until an operator replays or purges them.

In: the broker's queue `executions.dead_letters`, to which the leader publishes what it refuses. Out: rows of
`ledger.dead_letter`, each with reason and time. `drain` stores them, `message` translates between a message
and its row, `store` is what the API calls, and `executor.retention` prunes them.
"""
