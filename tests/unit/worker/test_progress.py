"""What an action reports of its progress: checked, and thinned out between a child process and its worker."""

import threading
from typing import Any

import pytest

from turnstile.worker.progress import Progress, Throttle, checked_progress


def test_a_progress_is_a_count_or_a_share() -> None:
    assert checked_progress(3) == Progress(done=3)
    assert checked_progress(0.5, 1, "half") == Progress(done=0.5, total=1, message="half")
    assert checked_progress(7, 5) == Progress(done=7, total=5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1,), ValueError, "progress: done: expected a number from 0 on, got -1"),
        ((float("nan"),), ValueError, "progress: done: expected a number from 0 on, got nan"),
        ((1, float("inf")), ValueError, "progress: total: expected a number from 0 on, got inf"),
        ((10**400,), ValueError, "progress: done: expected a number from 0 on, got 1000"),
        (("3",), TypeError, "progress: done: expected a number, got str"),
        ((True,), TypeError, "progress: done: expected a number, got bool"),
    ],
)
def test_what_is_no_progress_names_the_argument(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        checked_progress(*arguments)
    assert str(raised.value).startswith(message)


def test_a_message_is_storable_and_bounded() -> None:
    message = checked_progress(1, None, "\0" + "x" * 1000).message
    assert message is not None
    assert message.startswith("\ufffdx")
    assert len(message) <= 510


def test_the_first_is_passed_on_at_once_and_then_the_newest_of_each_interval() -> None:
    passed: list[float] = []
    two = threading.Event()

    def pass_on(progress: Progress) -> None:
        passed.append(progress.done)
        if len(passed) == 2:
            two.set()

    throttle = Throttle(pass_on, interval_seconds=0.05)
    for number in range(100):
        throttle.put(Progress(done=number))
    assert passed[0] == 0
    assert two.wait(10)
    assert passed[-1] == 99
    throttle.close()
    assert len(passed) <= 3


def test_the_last_is_passed_on_at_the_end_and_nothing_after_it() -> None:
    passed: list[float] = []
    throttle = Throttle(lambda progress: passed.append(progress.done), interval_seconds=3600)
    for number in range(5):
        throttle.put(Progress(done=number))
    throttle.close()
    throttle.put(Progress(done=5))
    throttle.close()
    assert passed == [0, 4]
