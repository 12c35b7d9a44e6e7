"""Measures a recorded scenario: throughput, latencies, use of slots, recovery from faults.

`scenario.measure_scenario` returns the metrics of one scenario, `run.run_metrics` those of a run: pure.
"""
