"""The same no-op load on this project and on other systems, side by side in one run.

In: contestants (`contestants`), each with its own module in `systems` that speaks that system's own language.
Out: one table for each load: without a limit, under a limit per action, one at a time. Each job writes its
start and its stop itself (`job`), so that all are measured by the same clock and by the same rule.
Next: `command` reads the options, `session` runs one contestant once, `history` reckons, `tables` shows.
`make bench-peers` runs it in an environment of its own, which holds all the others' packages.
"""
