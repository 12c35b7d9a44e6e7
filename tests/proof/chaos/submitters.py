"""Everybody who asks something of the system during a run, each in a task of its own.

In: the planned steps. Out: a `Log` of what was sent and confirmed. Each submitter goes step by step, so what
it sent first arrives first. Next: `message_submitter`, `http_submitter`.
"""

import asyncio
from collections.abc import Sequence

from tests.proof.chaos.ground import Ground
from tests.proof.chaos.http_submitter import HttpSubmitter
from tests.proof.chaos.load import SUBMITTERS, Change, Step
from tests.proof.chaos.message_submitter import send_messages
from tests.proof.chaos.sent import Log


async def send_all(ground: Ground, steps: Sequence[Step], log: Log) -> None:
    """Send every step at its time from now on; return when each has its answer."""
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        for name, way in SUBMITTERS.items():
            own = [step for step in steps if not isinstance(step, Change) and step.submitter == name]
            if way == "amqp":
                sending = send_messages(ground.amqp_url, own, log, began)
            else:
                sending = _over_http(ground, log).send(own, began)
            tasks.create_task(sending, name=f"submitter-{name}")
        changes = [step for step in steps if isinstance(step, Change)]
        tasks.create_task(_over_http(ground, log).send(changes, began), name="operator")


async def change_all(ground: Ground, changes: Sequence[Change], log: Log) -> None:
    """Make these changes now; return when each has been taken."""
    await _over_http(ground, log).send(changes, asyncio.get_running_loop().time())


def _over_http(ground: Ground, log: Log) -> HttpSubmitter:
    return HttpSubmitter(ground.http, [executor.url for executor in ground.executors], log)
