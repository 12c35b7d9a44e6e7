"""What both services must agree on, and nothing else.

`domain` holds the pure rules; `messages`, `envelopes`, `requests`, `schemas`, and `worker_protocol` with its
wire what is said; `broker` and `database` the connections to the servers; `settings`, `cli`, `http`,
`lifecycle` and `telemetry` what makes all processes behave alike. Code that only one service needs belongs
into that service.
"""


def needs_extra(what: str, extra: str) -> str:
    """Say how to install what is missing."""
    return f"{what} needs the extra: pip install 'turnstile-scheduler[{extra}]'"
