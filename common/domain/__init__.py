"""The rules of Turnstile as pure values and functions: no clock, no network, no third-party import.

Start with `states`: the one table of transitions that the statements, the database's enum, the API
and the documentation are all checked against.
"""
