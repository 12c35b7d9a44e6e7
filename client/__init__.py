"""The Python client of Turnstile: submit, wait and cancel over AMQP, read over HTTP.

    async with AsyncClient(amqp_url="amqp://guest:guest@127.0.0.1:5672/") as client:
        result = await client.run("reports.render", {"customer_id": 7})

`Client` is the same for code without an event loop. `submit_in` and `submit_in_async` submit inside a
database transaction of the caller.
"""

from turnstile.client.api import Execution, ExecutionPage
from turnstile.client.client import AsyncClient, Client
from turnstile.client.completions import Completion
from turnstile.client.errors import ExecutionFailed, Rejected, Unavailable
from turnstile.client.requests import Request
from turnstile.client.submission import Submitted
from turnstile.client.transactions import submit_in, submit_in_async
from turnstile.common.domain.states import Status
from turnstile.common.messages import Error
from turnstile.common.schemas import QueueStats

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
    "submit_in",
    "submit_in_async",
]
