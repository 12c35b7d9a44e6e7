"""Chaos: a real system under seeded load and seeded faults, then healed, drained and checked.

`schedule` and `load` plan from a seed; `faults` break and heal; `submitters` send; `run` does one
seed; `history` reads it from its witnesses, `judge` and `findings` check it, `report` prints it.
`neighbours` misbehave beside a system that is intact. `python -m tests.proof.chaos --help`.
"""
