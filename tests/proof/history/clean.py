"""A small history as it should be.

Two lines with a limit of 1 and one without, two workers of which one is lost, every kind of end and return.
"""

from tests.proof.history.recording import Recording, WorkerEvent
from tests.proof.history.story import Story
from turnstile.common.domain.states import Status

A, B, FREE = 1, 2, 3
"""Queues."""


def as_it_should_be() -> Recording:
    """Return a history that breaks no promise."""
    story = Story()
    for queue_id, limit in ((A, 1), (B, 1), (FREE, None)):
        story.queue(queue_id, limit)
    story.worker("w1")
    story.worker("w2")
    story.admit(1, A, granted=True)
    story.claim(1, "w1")
    story.admit(2, A)
    story.admit(3, A)
    story.admit(4, B, granted=True)
    story.claim(4, "w2")
    story.cancel(2)
    story.finish(1)
    story.settle(1, then=3)
    story.claim(3, "w1")
    story.lose("w1", 3)
    story.claim(3, "w2")
    story.finish(3, Status.FAILED)
    story.settle(3)
    story.finish(4, Status.DELAYED)
    story.settle(4)
    story.wake(4, granted=True)
    story.claim(4, "w2")
    story.admit(5, B)
    story.finish(4, Status.TIMEOUT)
    story.settle(4, then=5)
    story.admit(6, FREE, granted=True)
    story.admit(7, FREE, granted=True)
    for execution_id in (5, 7, 6):
        story.claim(execution_id, "w2")
    for execution_id in (6, 5, 7):
        story.finish(execution_id)
        story.settle(execution_id)
    story.worker("w2", WorkerEvent.STOPPED)
    return story.recording()
