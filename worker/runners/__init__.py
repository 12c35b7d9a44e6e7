"""The ways in which an action is run; see `report` for the contract, `stopping` for how runs are ended.

in_loop   async functions, as tasks of the worker's loop
child     plain functions, each in a process of the pool
command   an argv, in a process group of its own
http      a POST to a URL
"""

from turnstile.worker.runners.report import Call, Interrupted, RunLimits, Runner, RunReport
from turnstile.worker.runners.stopping import StopRequest

__all__ = ["Call", "Interrupted", "RunLimits", "RunReport", "Runner", "StopRequest"]
