"""The answers of an executor to requests that come as messages."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.brokers import running
from tests.support.traffic import publishing, request
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.topology import EXECUTOR_REQUESTS, declare_executor
from turnstile.common.database import Database
from turnstile.executor.cancellation import Canceller, EarlyCancels
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.parameter_schemas import ParameterSchemas
from turnstile.executor.protocol import ExecutorProtocol
from turnstile.executor.request_listener import RequestListener
from turnstile.executor.slot_grants import QueueManager


async def answers_to(
    database: Database, amqp_url: str, bodies: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Publish requests; return the replies in the order in which the requests were taken."""
    consumer = ConsumerConnection(amqp_url, name="test")
    queue = consumer.subscribe(EXECUTOR_REQUESTS, prefetch=100, declare=declare_executor)
    async with publishing(amqp_url) as publisher, running(consumer):
        queue_manager = QueueManager(database, schemas=ParameterSchemas(ExecutorProtocol(database)))
        dispatcher = Dispatcher(publisher, queue_manager, "quorum", publisher)
        canceller = Canceller(queue_manager)
        early = EarlyCancels(database, canceller, dispatcher)
        listener = RequestListener(queue_manager, canceller, early, dispatcher, parameters_bytes_max=1024)
        await publisher.publish([request(body, reply_to="answers") for body in bodies])
        answers: list[dict[str, Any]] = []
        while len(answers) < len(bodies):
            deliveries = await queue.next_batch(len(bodies))
            decided = await listener.process(deliveries)
            replies = {
                each.delivery.message_id: json.loads(each.message.body)
                for each in decided.replies
                if each.message.exchange == "" and each.message.routing_key == "answers"
            }
            answers += [replies[delivery.message_id] for delivery in deliveries]
            queue.ack(deliveries)
        return answers
