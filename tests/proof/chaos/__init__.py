"""Chaos: a real system under seeded load and seeded faults, then healed, drained and checked.

`schedule` and `load` plan from a seed; `proxy`, `services` and the `*_faults` break and heal; `run` does one
seed; `report` says what came of it. `python -m tests.proof.chaos --help`.
"""
