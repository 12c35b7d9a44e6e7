"""Heals what a lost message or a dead process left behind; never the normal path (P7, P8).

`watchdog` goes round; `links` tells again what was lost; `lines` grants, wakes and expires; `leases` takes
back the work of lost workers and stops what is overdue; `counters` recounts. `health` says when the database
has been well for long enough to believe that a silent worker is dead.
"""

from turnstile.executor.watchdog.watchdog import Watchdog

__all__ = ["Watchdog"]
