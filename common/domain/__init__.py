"""The rules of Turnstile as pure values and functions: no clock, no network, no third-party import.

`states` holds the table of transitions: a test compares it with the enum in PostgreSQL, and the statements,
the API and the documentation are derived from it. `waiting` is a container: ids in their order, packed.
"""
