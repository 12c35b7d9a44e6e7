"""The process that ends runs when the worker cannot: it died, it is stopped, its time is over."""

import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.worker.waiting import is_alive, until
from worker.runners.guardian import Guardian
from worker.runners.guardian_main import clock

StartGroup = Callable[[], int]


@pytest.fixture
def start_group() -> Iterator[StartGroup]:
    """Start a process that leads a group; returns its number."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_what_runs_past_the_deadline_dies_and_so_does_what_is_started_later(
    guardian: Guardian, start_group: StartGroup
) -> None:
    first = start_group()
    guardian.watch(first)
    guardian.hold_until(clock() + 0.3)
    assert is_alive(first)
    await until(lambda: not is_alive(first))
    second = start_group()
    guardian.watch(second)
    await until(lambda: not is_alive(second))


@pytest.mark.parametrize("later_seconds", [1000.0, None])
async def test_a_later_deadline_or_none_replaces_the_one_before(
    guardian: Guardian, start_group: StartGroup, later_seconds: float | None
) -> None:
    kept, killed = start_group(), start_group()
    deadline_seconds = clock() + 0.3
    with Guardian() as other:
        other.watch(killed)
        other.hold_until(deadline_seconds + 0.1)
        guardian.watch(kept)
        guardian.hold_until(deadline_seconds)
        guardian.hold_until(None if later_seconds is None else clock() + later_seconds)
        await until(lambda: not is_alive(killed))
    assert is_alive(kept)


async def test_a_deadline_may_be_told_from_any_thread(guardian: Guardian, start_group: StartGroup) -> None:
    group = start_group()
    guardian.watch(group)
    thread = threading.Thread(target=guardian.hold_until, args=(clock(),))
    thread.start()
    thread.join()
    await until(lambda: not is_alive(group))
