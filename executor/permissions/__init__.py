"""Accounts for each service with the fewest rights, as `executor setup-permissions` creates them.

`credentials` writes a file with each service's passwords, `database` creates the roles of PostgreSQL,
`broker` defines what each account of RabbitMQ may do and creates it.
"""
