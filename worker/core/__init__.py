"""The worker as logic on small ports: it decides nothing about queues, it runs and reports.

Read `process` first. `session` and `receiver` take what the leader sends, `attempt` orders what has not
started and runs it, `reporter` keeps every end until it is committed, `lease` says what may be done now.
`ports` is all that a worker needs of its surroundings: nothing here imports a driver, reads a clock or
draws a random number, so the same code runs in the product and in the simulation.
"""
