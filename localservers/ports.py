"""Picks free loopback ports for servers that are restarted while clients keep connecting.

Between the pick of a port and the server's bind, another program could pick the same port; so each pick is
reserved on the machine for all programs that use this function.

Ports come from below the kernel's ephemeral range. Inside it, a client that retries `connect` while the
server is down can get the very port it dials as its own source port: it then connects to itself and keeps
the server from binding.
"""

import json
import os
import random
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOOPBACK = "127.0.0.1"
_LOWEST = 10_240
_TRIES = 1_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_START_BY_DEFAULT = 32_768
_RESERVED_MAX = 32
_reservations: Final[deque[int]] = deque()
"""File descriptors of the latest picks; the kernel drops them when this process ends."""


class _Kept:
    """The ports of `same_ports` by name, and its file; None outside it."""

    ports: dict[str, int] | None = None
    file: Path | None = None


def free_port(name: str | None = None) -> int:
    """Return a loopback port on which nothing listens, outside the ephemeral range.

    No other program gets it from this function while it is among the 32 latest picks of this process. Inside
    `same_ports`, one with a name is the same each time.
    """
    ports = _Kept.ports
    if ports is None or name is None:
        return _any_free_port()
    earlier = ports.get(name)
    ports[name] = earlier if earlier and _is_free(earlier) and _reserve(earlier) else _any_free_port()
    if _Kept.file is not None and ports[name] != earlier:
        # At once: a start that is killed leaves them to the next one.
        with suppress(OSError):
            _Kept.file.write_text(json.dumps(ports, indent=1) + "\n", encoding="utf-8")
    return ports[name]


@contextmanager
def same_ports(file: Path) -> Iterator[None]:
    """Let `free_port` pick for each name the port in this file, if it is free; note there what it picks."""
    ports: dict[str, int] = {}
    # The first time, or not our file: then all are picked again.
    with suppress(OSError, ValueError, AttributeError):
        noted = json.loads(file.read_text(encoding="utf-8"))
        ports = {name: port for name, port in noted.items() if port in range(1, 65_536)}
    _Kept.ports, _Kept.file = ports, file
    try:
        yield
    finally:
        _Kept.ports = _Kept.file = None


def _any_free_port() -> int:
    # The system's source: tests seed the other one, and two processes would pick the same ports.
    source = random.SystemRandom()
    for candidate in (source.randrange(_LOWEST, _ephemeral_start()) for _ in range(_TRIES)):
        if _is_free(candidate) and _reserve(candidate):
            return candidate
    raise OSError(f"no free port on {LOOPBACK} in {_TRIES} tries")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _reserve(port: int) -> bool:
    if sys.platform != "linux":
        return True
    # An abstract socket name, in the network namespace of the ports: the kernel frees it with the process.
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
    # Where nearly all ports are ephemeral, there is no room below; then any port will do.
    return start if start > _LOWEST + _TRIES else _EPHEMERAL_START_BY_DEFAULT
