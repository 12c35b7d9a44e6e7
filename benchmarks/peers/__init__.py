"""The same no-op load on Turnstile and on PgQueuer, in one run on the same servers.

Each job records its start and stop itself (`job`), so both are measured by the same clock and the same rules
(`history`). `make bench-peers` runs it in an environment with PgQueuer.
"""
