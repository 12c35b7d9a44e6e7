"""Submit an execution with a plain AMQP client: no code of ours, one line of JSON.

python examples/submit_plain.py amqp://user:password@host:port/vhost files.digest '{"path": "/etc/hostname"}'
"""

import asyncio
import json
import sys

import aio_pika


async def submit(url: str, action_ref: str, parameters: str) -> None:
    async with await aio_pika.connect(url, timeout=10) as connection:
        channel = await connection.channel()
        executions = await channel.get_exchange("executions")
        body = json.dumps({"action_ref": action_ref, "parameters": json.loads(parameters)})
        message = aio_pika.Message(body.encode(), type="execution.requested", delivery_mode=2)
        await executions.publish(message, routing_key="execution.requested", timeout=10)


asyncio.run(submit(*sys.argv[1:4]))
