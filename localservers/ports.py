"""Free loopback ports for servers that are restarted while clients keep knocking.

Between the pick of a port and its server's bind it is free to everybody. Of two programs that pick the same
one in that time, one would find the other's server answer in place of its own: so a pick is reserved on the
machine.

Ports come from below the kernel's ephemeral range: inside it, a client that retries `connect` while the
server is down can be given the very port it dials as its own source port, connects to itself, and keeps the
server out.
"""

import os
import random
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Final

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_TRIES = 1_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_START_BY_DEFAULT = 32_768
_RESERVED_MAX = 32
_reservations: Final[deque[int]] = deque()
"""File descriptors, of the latest picks; each reservation ends with this process, however it ends."""


def free_port() -> int:
    """Return a loopback port on which nothing listens now, outside the ephemeral range.

    Of programs that pick by this function none gets it too while this one is among the latest picks here.
    """
    # Of the system, since tests seed the other one: two processes would pick the same ports.
    chance = random.SystemRandom()
    for candidate in (chance.randrange(_LOWEST, _ephemeral_start()) for _ in range(_TRIES)):
        if _is_free(candidate) and _reserve(candidate):
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


def _reserve(port: int) -> bool:
    if sys.platform != "linux":
        return True
    # A name without a file, in the same network namespace as the ports: the kernel frees it with the process.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reservation:
        try:
            reservation.bind(f"\0turnstile port {port}")
        except OSError:
            return False
        _reservations.append(reservation.detach())
    while len(_reservations) > _RESERVED_MAX:
        os.close(_reservations.popleft())
    return True


def _ephemeral_start() -> int:
    try:
        start = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        start = _EPHEMERAL_START_BY_DEFAULT
    # A machine that hands out nearly all ports leaves no room below; then any port is as good as another.
    return start if start > _LOWEST + _TRIES else _EPHEMERAL_START_BY_DEFAULT
