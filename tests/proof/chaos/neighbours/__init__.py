"""Chaos of the second kind: nothing is broken, but neighbours misbehave beside a steady load.

`schedule` plans, `neighbour` is the base class of the `kinds`, `process` runs them outside of the harness.
`load` is the steady load, `monitor` observes the services, `verdict` checks, `run` does one seed.
"""
