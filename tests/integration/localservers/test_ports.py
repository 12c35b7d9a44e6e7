"""Free ports that a server can bind again."""

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turnstile.localservers import ports
from turnstile.localservers.ports import free_port, same_ports


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


def test_a_name_gets_its_port_of_the_last_time_unless_another_program_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reservations of this process stand for those of an earlier one.
    monkeypatch.setattr(ports, "_reserve", lambda _: True)
    file = tmp_path / "ports"
    with same_ports(file):
        first = [free_port("a"), free_port("b")]
    with same_ports(file):
        assert [free_port("a"), free_port("b")] == first
    with same_ports(file), socket.create_server((ports.LOOPBACK, first[0])):
        moved = free_port("a")
        assert moved != first[0]
        assert free_port("b") == first[1]
    assert json.loads(file.read_text()) == {"a": moved, "b": first[1]}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "x"}', '{"a": 0}'])
def test_a_file_that_is_none_of_ports_is_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ports"
    file.write_text(text)
    with same_ports(file):
        port = free_port("a")
    assert json.loads(file.read_text()) == {"a": port}
