"""Accounts for each service, with no more rights than it needs: what `executor setup-permissions` does.

`credentials` keeps a file with the passwords of each service, `database` makes the roles of PostgreSQL,
`accounts` says what each account of RabbitMQ may do, `broker` tells it to a server, or writes it down.
"""
