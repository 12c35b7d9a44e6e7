"""The Python client of Turnstile: submit, wait and cancel over AMQP, read over HTTP.

    async with AsyncClient(amqp_url="amqp://guest:guest@127.0.0.1:5672/") as client:
        result = await client.run("reports.render", {"customer_id": 7})

`Client` is the same for code without an event loop. Next: `async_client` is the front; behind it stand
`submissions` and `request` (what is sent), `outbox` (sent for certain), `answers` (accepted or rejected),
`ends` (how it ended) and `api` (what is read); `sync_client` makes the blocking one out of it.
"""

from turnstile.client.async_client import AsyncClient
from turnstile.client.ends import Completion
from turnstile.client.errors import ExecutionFailed, Rejected, Unavailable
from turnstile.client.request import Request
from turnstile.client.shapes import Error, Execution, ExecutionPage, QueueStats
from turnstile.client.submissions import Submitted
from turnstile.client.sync_client import Client
from turnstile.common.domain.states import Status

__all__ = [
    "AsyncClient",
    "Client",
    "Completion",
    "Error",
    "Execution",
    "ExecutionFailed",
    "ExecutionPage",
    "QueueStats",
    "Rejected",
    "Request",
    "Status",
    "Submitted",
    "Unavailable",
]
