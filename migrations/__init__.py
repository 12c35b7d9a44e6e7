"""Brings a database to the schema and the protocol of this version.

`migrate` may be run by any number of processes at once: an advisory lock lets one through at a time,
and the rest find nothing left to do. Tables come from the revisions in `versions`, the protocol's
functions from `common.sql`, all in one transaction, which yields to sessions that hold a table for long.
"""
