"""Checks a history: which promises it breaks, and where. Pure.

A source of history gives the moves of each queue, which `gates` replays one gate at a time, and a `History`,
the tables of requests, executions, attempts and runs. `queues` and `history` make both of a stress recording,
which `rules.check_recording` checks. `passages` replays the gates after the queue from stored executions and
from `definitions`, the definitions over time; `gate_rules` makes both of a recording. `counts` works on plain
numbers and intervals.
"""
