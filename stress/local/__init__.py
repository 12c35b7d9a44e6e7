"""A private installation: servers, executors and workers of our own, which may be broken on purpose.

In: how many of each. Out: an `Installation` like any other, and a `Breaker`; nothing of it outlives the run.
A reader starts at `system`; `services` says what runs, `faults` breaks it, `deaths` knows what is gone,
`schedule` says what is broken when.
"""
