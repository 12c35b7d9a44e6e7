"""Carries out one scenario on an installation and records it.

`driver` coordinates: `setup` prepares the actions, `submission` sends requests and takes replies, `faults`
injects faults, `watcher` decides when it is over. Then `history` reads executions and attempts back,
and `traces` reads when actions really ran.
"""
