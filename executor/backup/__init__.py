"""Backup and restore: `executor export` writes a dump, `executor restore-check` makes a restored copy safe.

In: the database as the owner of its tables, and the broker. Out: a file; or a copy whose ids continue above
all that were ever seen, beside queues without messages of its future. Keeps P2 to P4 and P6 over a restore.
"""
