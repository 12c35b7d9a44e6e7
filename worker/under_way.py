"""One attempt under way, as far as stopping it goes.

In: the task that makes the attempt. Out: a way to end it at whatever step it is: a wait for a server is
broken off, a run is stopped and seen to its end. Next: `worker.attempt` keeps one for each attempt.
"""

import asyncio
from enum import Enum

from turnstile.worker.runners import StopRequest


class Step(Enum):
    """How far an attempt has come."""

    WAIT = "wait"
    """Nothing was asked of anybody: it may be left to another worker."""
    CLAIM = "claim"
    """The claim is on its way, or made; nothing runs yet."""
    RUN = "run"
    """The action runs."""
    TELL = "tell"
    """Nothing runs any more."""


class UnderWay:
    """One attempt; make it in the task that makes the attempt."""

    __slots__ = ("given_up", "step", "stop", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[object] = task
        self.stop = StopRequest()
        self.step = Step.WAIT
        self.given_up = False

    def give_up(self) -> None:
        """Break off its wait for an answer; what runs is left to `stop`, so that its end is seen."""
        self.given_up = True
        if self.step is not Step.RUN:
            self.task.cancel()
