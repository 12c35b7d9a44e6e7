"""Sends the load over AMQP: in order, confirmed, again where the fate of a message is unknown.

In: the steps of one submitter. Out: entries in the `Log`. A repetition starts with the first message that may
be missing, and bears the same message ids: so what was published first arrives first, and nothing is doubled.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tests.proof.chaos.load import Cancel, Submit
from tests.proof.chaos.sent import Log, named
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.delivery import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS, declare_executor
from turnstile.common.messages import CANCEL_REQUESTED, REQUESTED


async def send_messages(amqp_url: str, steps: Sequence[Submit | Cancel], log: Log, began: float) -> None:
    """Send each step when it is due, counted from `began`, and return when all are confirmed."""
    publisher = Publisher(amqp_url, name="submitter", declare=declare_executor)
    connected = asyncio.create_task(publisher.run(), name="submitter-publisher")
    try:
        for batch in _batches(steps):
            await asyncio.sleep(began + batch[0].at_seconds - asyncio.get_running_loop().time())
            messages = [message for step in batch if (message := _message(step, log)) is not None]
            await _publish(publisher, messages, log)
            now = datetime.now(UTC)
            for step in batch:
                if isinstance(step, Submit) and log.sent[step.number].confirmed_at is None:
                    log.sent[step.number].confirmed_at = now
    finally:
        connected.cancel()
        await asyncio.gather(connected, return_exceptions=True)


def _batches(steps: Sequence[Submit | Cancel]) -> Iterator[list[Submit | Cancel]]:
    """Put together what is due at the same instant."""
    batch: list[Submit | Cancel] = []
    for step in steps:
        if batch and step.at_seconds > batch[0].at_seconds:
            yield batch
            batch = []
        batch.append(step)
    if batch:
        yield batch


async def _publish(publisher: Publisher, messages: Sequence[Outgoing], log: Log) -> None:
    """Publish until all are confirmed: always from the first one that may be missing, so order holds."""
    pending = list(messages)
    while pending:
        try:
            outcomes = await publisher.publish(pending)
        except BrokerUnavailable:
            log.repeated += 1
            continue
        missing = [number for number, o in enumerate(outcomes) if o is not Publication.CONFIRMED]
        pending = pending[missing[0] :] if missing else []
        if pending:
            # Nobody has declared the queue yet, or somebody has deleted it.
            log.repeated += 1
            with suppress(BrokerUnavailable):
                await publisher.declare(declare_executor)


def _message(step: Submit | Cancel, log: Log) -> Outgoing | None:
    match step:
        case Submit():
            return _outgoing(REQUESTED, step.message_id, log.sending(step).body)
        case Cancel():
            body = named(step, log)
            if body is None:
                return None
            log.cancels += 1
            return _outgoing(CANCEL_REQUESTED, f"cancel of {step.of.message_id}", body)


def _outgoing(kind: str, message_id: str, body: Mapping[str, Any]) -> Outgoing:
    return Outgoing(
        exchange=EXECUTIONS,
        routing_key=kind,
        body=json.dumps(body).encode(),
        type=kind,
        message_id=message_id,
        app_id="client",
    )
