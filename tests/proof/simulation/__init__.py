"""A simulated world: leaders, workers, broker and database in one process, on a simulated clock, from a seed.

`loop` is time, `processes` what an operating system does to a process, `broker` and `database` the two
servers, `clients` and `runner` what surrounds them. The leader and the worker of the product run in it
unchanged, on their ports. `story` makes a scenario of a seed, `faults` what goes wrong in it, `judge` checks
what happened.
"""
