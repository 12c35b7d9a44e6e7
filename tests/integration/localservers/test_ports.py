"""Ports that servers can come back to."""

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turnstile.localservers import ports
from turnstile.localservers.ports import LOOPBACK, free_port


def test_a_port_lies_below_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    assert all(free_port() < lowest for _ in range(50))


def test_a_port_can_be_listened_on() -> None:
    with socket.create_server((LOOPBACK, free_port())):
        pass


def test_a_port_that_was_picked_is_nobody_else_s_until_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    picked = free_port()
    only_that_one = f"from localservers import ports; ports._LOWEST = {picked}; ports._TRIES = 1"
    elsewhere = f"{only_that_one}; ports._ephemeral_start = lambda: {picked + 1}; ports.free_port()"
    refused = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True, check=False)
    assert "OSError: no free port" in refused.stderr
    monkeypatch.setattr(ports, "_RESERVED_MAX", 0)
    free_port()
    subprocess.run([sys.executable, "-c", elsewhere], check=True)


def test_who_seeds_the_same_picks_other_ports() -> None:
    picks = []
    for _ in range(2):
        random.seed(7)
        picks.append([free_port() for _ in range(5)])
    assert picks[0] != picks[1]


def test_picking_does_not_use_up_file_descriptors() -> None:
    for _ in range(50):
        free_port()
    assert len(ports._reservations) <= 32
