"""Free ports that a server can bind again."""

import random
import subprocess
import sys

import pytest

from turnstile.localservers import ports
from turnstile.localservers.ports import free_port


def test_a_picked_port_is_reserved_until_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    picked = free_port()
    only_that_one = f"from turnstile.localservers import ports; ports._LOWEST = {picked}; ports._TRIES = 1"
    elsewhere = f"{only_that_one}; ports._ephemeral_start = lambda: {picked + 1}; ports.free_port()"
    refused = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True, check=False)
    assert "OSError: no free port" in refused.stderr
    monkeypatch.setattr(ports, "_RESERVED_MAX", 0)
    free_port()
    subprocess.run([sys.executable, "-c", elsewhere], check=True)


def test_processes_with_the_same_seed_pick_different_ports() -> None:
    picks = []
    for _ in range(2):
        random.seed(7)
        picks.append([free_port() for _ in range(5)])
    assert picks[0] != picks[1]
