"""The scheduler as values and functions: no input or output, no clock, no randomness.

Read `decide` first: it says which execution starts next, and is the only place that grants. `transitions`
applies what happened (`inputs`) to the `state` before each decision, `explain` answers questions about it,
and `decisions` are what the leader writes and publishes. The same inputs in the same order always lead to the
same decisions, so the leader, the simulation, the explorer and the tests run this code and no twin of it.
"""
