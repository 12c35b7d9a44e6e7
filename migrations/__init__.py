"""Brings a database to the schema of this version.

`migrate` may be run by any number of processes at once: an advisory lock lets one through at a time,
and the rest find nothing left to do. All revisions of `versions` run in one transaction, which yields to
sessions that hold a table for long.
"""
