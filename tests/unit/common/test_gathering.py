"""Gather windows: batches are spaced only while the flow is dense and this thread waits for processors."""

import time
from dataclasses import dataclass

import pytest

from turnstile.common.gathering import INTERVAL_SECONDS_MAX, GatherWindow, ProcessorWait


@dataclass
class Machine:
    """A clock, and the time that a thread of it has waited for a processor."""

    now: float = 100.0
    waited_seconds: float = 7.0

    def wait(self) -> ProcessorWait:
        return ProcessorWait(lambda: self.waited_seconds, clock=lambda: self.now)

    def window(self) -> GatherWindow:
        return GatherWindow(self.wait(), clock=lambda: self.now)

    def work(self, seconds: float, *, waiting: float) -> None:
        """Let time pass, of which the share `waiting` is spent in the run queue."""
        self.now += seconds
        self.waited_seconds += seconds * waiting


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize(("waiting", "part"), [(0.0, 0.0), (0.05, 0.0), (0.15, 0.5), (0.25, 1.0), (0.9, 1.0)])
def test_the_interval_grows_with_the_share_of_time_without_a_processor(
    machine: Machine, waiting: float, part: float
) -> None:
    window = machine.window()
    machine.work(1.0, waiting=waiting)
    window.begin(2)
    assert window.seconds(2) == pytest.approx(part * INTERVAL_SECONDS_MAX, abs=1e-9)


def test_a_lone_item_never_waits_even_without_a_free_processor(machine: Machine) -> None:
    window = machine.window()
    machine.work(1.0, waiting=0.9)
    for _ in range(10):
        assert window.seconds(1) == 0
        window.begin(1)
        machine.work(0.001, waiting=0.9)


def test_what_follows_a_batch_waits_for_the_rest_of_the_interval_and_no_longer(machine: Machine) -> None:
    window = machine.window()
    machine.work(1.0, waiting=0.9)
    window.begin(2)
    machine.work(INTERVAL_SECONDS_MAX * 0.75, waiting=0.9)
    assert window.seconds(1) == pytest.approx(INTERVAL_SECONDS_MAX * 0.25)
    assert window.seconds(2) == pytest.approx(INTERVAL_SECONDS_MAX * 0.25)
    machine.work(INTERVAL_SECONDS_MAX * 0.5, waiting=0.9)
    assert window.seconds(1) == 0
    assert window.seconds(2) == 0


def test_several_items_wait_for_the_interval_after_a_lone_one(machine: Machine) -> None:
    window = machine.window()
    machine.work(1.0, waiting=0.9)
    window.begin(1)
    assert window.seconds(2) == pytest.approx(INTERVAL_SECONDS_MAX)


def test_the_interval_vanishes_when_processors_become_free(machine: Machine) -> None:
    window = machine.window()
    machine.work(1.0, waiting=0.9)
    lengths = []
    for _ in range(20):
        machine.work(0.025, waiting=0.0)
        window.begin(2)
        lengths.append(window.seconds(2))
    assert lengths[0] == pytest.approx(INTERVAL_SECONDS_MAX)
    assert lengths[-1] == 0
    assert lengths == sorted(lengths, reverse=True)


def test_the_share_is_a_mean_of_the_recent_past_and_short_samples_are_not_read(machine: Machine) -> None:
    wait = machine.wait()
    machine.work(0.01, waiting=1.0)
    assert wait.share() == 0
    machine.work(0.01, waiting=1.0)
    assert wait.share() == pytest.approx(0.2)
    machine.work(0.05, waiting=0.2)
    assert wait.share() == pytest.approx(0.2)
    machine.work(10.0, waiting=0.01)
    assert wait.share() == pytest.approx(0.01)


def test_the_share_of_this_thread_is_read_from_the_system() -> None:
    wait = ProcessorWait()
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        pass
    assert 0 <= wait.share() <= 1
