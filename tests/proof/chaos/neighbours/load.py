"""The steady load beside the neighbours: a pure function of the seed, and how it is sent.

In: a seed and a duration. Out: `Submit`s in the order of their time, over AMQP and HTTP, of several actions
with limits and keys, so few that hardly one ever waits for another one's slot. Each is sent when it is due,
whatever happened to those before it: a submitter that waits for an answer would hide what the next request
suffers.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from tests.proof.chaos.environment import Environment
from tests.proof.chaos.load import Submit
from tests.proof.chaos.submitters import HttpSubmitter, SubmitLog
from tests.support.traffic import publishing, request
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher

_PER_SECOND: Final = {
    "steady.free": 12.0,
    "steady.seven": 10.0,
    "steady.keyed": 8.0,
    "steady.child": 1.0,
}
NUMBERS: Final[dict[str, int | None]] = {
    "steady.free": None,
    "steady.seven": 7,
    "steady.keyed": 2,
    "steady.child": 3,
    "neighbour.reply": 2,
    "neighbour.huge": 1,
    "neighbour.locked": 1,
    "neighbour.locked-keyed": 1,
    "neighbour.full": 1,
    "neighbour.keyed": 1,
    "neighbour.callback": None,
}
"""The limit of each action: no other gates, and none of them changes."""
_AMQP_SUBMITTERS: Final = ("amqp-1", "amqp-2")
_AMQP_SHARE: Final = 0.6
_CALLBACK_SHARE: Final = 0.1
"""Share of requests with a webhook receiver that answers."""
_KEYS: Final = 20
_AGAIN_SECONDS: Final = 1.0


def plan_load(seed: int, seconds: float, callback_url: str) -> list[Submit]:
    """Return all submissions of a run."""
    rng = random.Random(f"{seed} steady load")
    times = sorted(
        (rng.uniform(0.0, seconds), ref)
        for ref, per_second in _PER_SECOND.items()
        for _ in range(round(seconds * per_second))
    )
    return [
        _submit(rng, number, round(at_seconds, 3), ref, callback_url)
        for number, (at_seconds, ref) in enumerate(times, 1)
    ]


def _submit(rng: random.Random, number: int, at_seconds: float, ref: str, callback_url: str) -> Submit:
    body: dict[str, Any] = {
        "action_ref": ref,
        "parameters": {"seconds": round(rng.choice([0.0, 0.01, rng.uniform(0.0, 0.05)]), 3)},
        "metadata": {"tag": number},
    }
    if ref == "steady.keyed":
        body["parameters"]["key"] = rng.randrange(_KEYS)
    if rng.random() < _CALLBACK_SHARE:
        body["callback_url"] = f"{callback_url}/{number}"
    is_message = rng.random() < _AMQP_SHARE
    if not is_message:
        body["idempotency_key"] = f"steady {number}"
    return Submit(
        number=number,
        # Over HTTP no request waits for another one, so there is no order between them.
        submitter=rng.choice(_AMQP_SUBMITTERS) if is_message else f"http-{number}",
        at_seconds=at_seconds,
        message_id=str(UUID(int=rng.getrandbits(128), version=4)),
        body=body,
        run_in_seconds=None,
    )


async def send_all(environment: Environment, submits: Sequence[Submit], log: SubmitLog, began: float) -> None:
    """Send each when it is due, counted from `began`; return when all are confirmed."""
    http_urls = [executor.url for executor in environment.executors]
    async with asyncio.TaskGroup() as tasks:
        for name in _AMQP_SUBMITTERS:
            own = [step for step in submits if step.submitter == name]
            tasks.create_task(_send_messages(environment.amqp_url, own, log, began), name=f"submitter-{name}")
        for step in submits:
            if step.submitter not in _AMQP_SUBMITTERS:
                urls = http_urls if step.number % 2 else http_urls[::-1]
                submitter = HttpSubmitter(environment.http, urls, log)
                tasks.create_task(submitter.send([step], began), name=f"submit-{step.number}")


async def _send_messages(amqp_url: str, steps: Sequence[Submit], log: SubmitLog, began: float) -> None:
    now = asyncio.get_running_loop().time
    async with publishing(amqp_url) as publisher, asyncio.TaskGroup() as tasks:
        for step in steps:
            await asyncio.sleep(began + step.at_seconds - now())
            tasks.create_task(_publish(publisher, step, log), name=f"submit-{step.number}")


async def _publish(publisher: Publisher, step: Submit, log: SubmitLog) -> None:
    """Publish until it is confirmed.

    A refusal may come from another queue that is bound to the exchange: it does not say that the request was
    refused.
    """
    sent = log.sending(step)
    message = request(sent.body, message_id=step.message_id)
    while True:
        with suppress(BrokerUnavailable):
            if await publisher.publish([message]) == [Publication.CONFIRMED]:
                sent.confirmed_at = datetime.now(UTC)
                return
        log.repeated += 1
        await asyncio.sleep(_AGAIN_SECONDS)
