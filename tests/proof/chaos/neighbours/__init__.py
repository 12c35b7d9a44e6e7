"""Chaos of the second kind: nothing is broken, but strangers misbehave beside a steady load (P9).

`schedule` draws which neighbour disturbs when, `neighbour` is what all of them have in common, `broker`,
`flood` and `database` are the neighbours themselves, `process` runs them outside of the harness. `load` is
the steady load, `watching` samples the services meanwhile, `verdict` judges, `run` puts it all together,
`report` prints.
"""
