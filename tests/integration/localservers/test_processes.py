"""A server process and its keeper: no process is left, whichever process dies."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.localservers.watching import kill_owner, processes_of, wait_until
from turnstile.localservers.errors import ServerFailed
from turnstile.localservers.processes import ServerProcess, wait_until_ready

# A server with a child in a separate session: after the server's exit, only the keeper can find it.
FAMILY = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[ServerProcess]:
    process = ServerProcess.start(
        "server",
        command,
        folder=folder,
        environment={"PATH": os.defpath},
        user=None,
        last_signal=signal.SIGTERM,
        grace_seconds=1.0,
    )
    try:
        yield process
    finally:
        process.stop(signal.SIGKILL, 10.0)


def sleeping(folder: Path) -> list[int]:
    return [pid for pid, command in processes_of(folder).items() if command.startswith("sleep 1000")]


def test_stop_leaves_no_descendant(tmp_path: Path) -> None:
    with started(FAMILY, tmp_path) as process:
        wait_until(lambda: len(sleeping(tmp_path)) == 2)
        process.stop(signal.SIGTERM, 10.0)
        assert processes_of(tmp_path) == {}
        assert not process.is_running


def test_a_server_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    with started(STUBBORN, tmp_path) as process:
        wait_until(lambda: process.log.read_bytes() == b"up\n")
        process.stop(signal.SIGTERM, 0.2)
        assert processes_of(tmp_path) == {}


def test_a_paused_server_with_descendants_is_frozen_and_can_be_stopped(tmp_path: Path) -> None:
    def states() -> list[str]:
        stats = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8") for pid in sleeping(tmp_path)]
        return [stat.rpartition(")")[2].split()[0] for stat in stats]

    with started(FAMILY, tmp_path) as process:
        wait_until(lambda: len(sleeping(tmp_path)) == 2)
        process.pause()
        wait_until(lambda: states() == ["T", "T"])
        process.stop(signal.SIGTERM, 10.0)
        assert processes_of(tmp_path) == {}


def test_the_server_ends_when_its_keeper_is_killed(tmp_path: Path) -> None:
    with started(["sleep", "1000"], tmp_path) as process:
        keeper = int(
            Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        )
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: processes_of(tmp_path) == {})


def test_all_descendants_end_when_the_owner_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from turnstile.localservers.processes import ServerProcess
process = ServerProcess.start("server", {FAMILY!r}, folder=Path({str(tmp_path)!r}),
    environment={{"PATH": os.defpath}}, user=None, last_signal=signal.SIGTERM, grace_seconds=1.0)
print(process.pid, flush=True)
signal.pause()
"""
    kill_owner(code, when=lambda: len(sleeping(tmp_path)) == 2)
    wait_until(lambda: processes_of(tmp_path) == {})


def test_a_server_that_ends_by_itself_is_an_error_with_its_log(tmp_path: Path) -> None:
    with (
        started(["sh", "-c", "echo no room on device; exit 3"], tmp_path) as process,
        pytest.raises(ServerFailed, match=r"(?s)ended while it started.*no room on device"),
    ):
        wait_until_ready(lambda: False, process, 10.0)
