"""What both services must agree on, and nothing else.

`domain` holds the pure rules; `messages`, `envelopes`, `requests`, `schemas`, and `worker_protocol` with its
wire what is said; `broker` and `database` the connections to the servers; `settings`, `cli`, `http`,
`lifecycle` and `telemetry` what makes all processes behave alike. Code that only one service needs belongs
into that service.
"""

from typing import Final

PIP_INSTALL: Final = "pip install '/path/to/turnstile[{extra}]'"
"""Installs an extra from a clone: on the public index, the name belongs to another project."""
