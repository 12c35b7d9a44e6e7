"""Ports that servers can come back to."""

import socket
from pathlib import Path

from localservers.ports import LOOPBACK, free_port


def test_a_port_lies_below_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    assert all(free_port() < lowest for _ in range(50))


def test_a_port_can_be_listened_on() -> None:
    with socket.create_server((LOOPBACK, free_port())):
        pass
