"""What the services of Turnstile must agree on, and nothing else.

`domain` holds the pure rules; `messages` the wire; `sql` the protocol's statements; `tables` the
schema; `broker` and `database` the two links. Nothing enters here unless both services need it.
"""
