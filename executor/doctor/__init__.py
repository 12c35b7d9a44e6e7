"""What `executor doctor` looks at: the database, the broker and this host, without changing any of them.

Each server is read once (`database`, `broker`, `host`); what is read is judged by a table of checks, whose
sentences are those of the start and of `/readyz`.
"""
