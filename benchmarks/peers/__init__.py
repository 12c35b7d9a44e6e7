"""The same no-op load on Turnstile and on other systems, in one run.

Each contestant has a module in `systems`. Each job records its start and stop itself (`job`), so all are
measured by the same clock and the same rules (`history`). `make bench-peers` runs it in an environment with
the packages of all systems.
"""
