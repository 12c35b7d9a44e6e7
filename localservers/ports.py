"""Free loopback ports for servers that are restarted while clients keep knocking.

Ports come from below the kernel's ephemeral range: inside it, a client that retries `connect` while the
server is down can be given the very port it dials as its own source port, connects to itself, and keeps the
server out.
"""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_TRIES = 1_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_START_BY_DEFAULT = 32_768


def free_port() -> int:
    """Return a loopback port on which nothing listens now, outside the ephemeral range."""
    # Not for secrets: a random pick keeps two processes that search at once apart.
    for candidate in (random.randrange(_LOWEST, _ephemeral_start()) for _ in range(_TRIES)):
        if _is_free(candidate):
            return candidate
    raise OSError(f"no free port on {LOOPBACK} in {_TRIES} tries")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _ephemeral_start() -> int:
    try:
        start = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        start = _EPHEMERAL_START_BY_DEFAULT
    # A machine that hands out nearly all ports leaves no room below; then any port is as good as another.
    return start if start > _LOWEST + _TRIES else _EPHEMERAL_START_BY_DEFAULT
