"""`executor demo`: 200 executions on a private system, checked with the rules of the stress test.

It shares the launcher (`local.launcher`) and the checker (`check.history`) with the stress test, but needs no
library of the `stress` extra. Start reading at `command`.
"""
