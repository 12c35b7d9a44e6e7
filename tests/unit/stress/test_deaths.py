"""Which processes are seen to be gone: those that were followed, and those that left marks."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.localservers.watching import wait_until
from turnstile.stress.local.deaths import DeathWatch

LASTING = ["sleep", "1000"]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(LASTING) as started:
        yield started
        started.kill()


def test_who_left_marks_is_seen_to_be_gone_though_its_parent_never_asked(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    (tmp_path / f"{process.pid}-1.marks").touch()
    watch = DeathWatch(tmp_path)
    watch.look()
    assert watch.deaths == {}
    killed_at = time.time_ns()
    process.kill()

    def is_noted() -> bool:
        watch.look()
        return process.pid in watch.deaths

    wait_until(is_noted)
    assert killed_at < watch.deaths[process.pid] <= time.time_ns()
    # It is still there for its parent to ask.
    os.kill(process.pid, 0)


def test_what_was_noted_once_stays_as_it_was(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    watch = DeathWatch(tmp_path)
    watch.follow([process.pid])
    process.kill()
    process.wait()
    watch.look()
    noted = dict(watch.deaths)
    assert list(noted) == [process.pid]
    (tmp_path / f"{os.getpid()}-1.marks").touch()
    watch.look()
    assert watch.deaths == noted


def test_marks_of_a_process_that_was_gone_before_the_first_look_are_noted_too(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    process.kill()
    process.wait()
    (tmp_path / f"{process.pid}-1.marks").touch()
    watch = DeathWatch(tmp_path)
    watch.look()
    assert list(watch.deaths) == [process.pid]
