"""A private installation: servers, executors and workers that a run may break.

`launcher` starts services and is shared with the demo, the benchmarks and the tests; `system` runs a whole
installation, `faults` injects faults into it, `schedule` plans them. Nothing of it outlives the run.
"""
