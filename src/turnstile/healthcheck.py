"""`turnstile healthcheck`: requests `/livez` of the service in the same container.

In: the port in TURNSTILE_WORKER_HTTP_PORT, else TURNSTILE_HTTP_PORT, else 8000. Out: exit code 0 for status
200, 1 for anything else. A container runtime calls it every few seconds, so it imports the standard library
only.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException

_PORTS = ("TURNSTILE_WORKER_HTTP_PORT", "TURNSTILE_HTTP_PORT")
_TIMEOUT_SECONDS = 4


def healthcheck() -> None:
    """Check that the service in this container is alive.

    Requests /livez from 127.0.0.1, at the port in TURNSTILE_WORKER_HTTP_PORT, else TURNSTILE_HTTP_PORT, else
    8000. Exit code 0: alive; 1: not alive.
    """
    port = next((os.environ[name] for name in _PORTS if os.environ.get(name)), "8000")
    try:
        connection = HTTPConnection("127.0.0.1", int(port), timeout=_TIMEOUT_SECONDS)
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, HTTPException, ValueError, OverflowError) as error:
        sys.exit(f"port {port}: {error}")
    if status != 200:
        sys.exit(f"port {port}: /livez responded with status {status}")
