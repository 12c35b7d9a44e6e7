"""Accounts for each service with the fewest rights, as `executor setup-permissions` creates them.

`rights` is the table of all rights, `plan` decides what happens to each account, `credentials` writes a file
with each service's passwords, `database` and `broker` read and change the accounts of a server.
"""
