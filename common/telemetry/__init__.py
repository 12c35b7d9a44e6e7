"""Logs, metrics and traces of the processes.

`logs` formats log lines. `metrics` counts, and writes `/metrics`; the services declare their metrics in
`executor.metrics` and `worker.metrics`. `tracing` is off, and imports nothing, until `spans` is needed.
"""
