"""Keeps the record from growing for ever: what is older, or more, than is to be kept is pruned.

In: the settings, and what each action says of its own executions. Out: rows that are gone, and counted in
`pruned_count`, so that the totals of a queue still add up. `pruner` goes on where it left off, a batch at a
time.
"""
