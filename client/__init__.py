"""The Python client of Turnstile: submit, wait and cancel over AMQP or HTTP, read over HTTP.

    async with AsyncClient.from_env() as client:
        result = await client.run("reports.render", {"customer_id": 7})

`Client` is the same for code without an event loop. `submit_in` and `submit_in_async` submit inside a
database transaction of the caller.
"""

import logging

from turnstile.client.client import AsyncClient, Client
from turnstile.client.completions import Completion
from turnstile.client.default import current_client, use_client
from turnstile.client.errors import (
    ExecutionFailed,
    InvalidResult,
    InvalidSetting,
    NotReceived,
    Rejected,
    TurnstileError,
    Unavailable,
)
from turnstile.client.events import StatusEvent
from turnstile.client.fields import ActionFields, ResourceFields
from turnstile.client.handle import AsyncHandle, Handle
from turnstile.client.requests import ActionRequest, Request
from turnstile.client.schemas import Execution, ExecutionPage, Progress, Submission
from turnstile.client.submission import Submitted
from turnstile.client.transactions import submit_in, submit_in_async
from turnstile.common.domain.states import Status
from turnstile.common.messages import Error
from turnstile.common.schemas import History, QueueStats

__all__ = [
    "ActionFields",
    "ActionRequest",
    "AsyncClient",
    "AsyncHandle",
    "Client",
    "Completion",
    "Error",
    "Execution",
    "ExecutionFailed",
    "ExecutionPage",
    "Handle",
    "History",
    "InvalidResult",
    "InvalidSetting",
    "NotReceived",
    "Progress",
    "QueueStats",
    "Rejected",
    "Request",
    "ResourceFields",
    "Status",
    "StatusEvent",
    "Submission",
    "Submitted",
    "TurnstileError",
    "Unavailable",
    "current_client",
    "submit_in",
    "submit_in_async",
    "use_client",
]

# An application that configures no logging sees the client's errors, and not its log lines.
logging.getLogger("turnstile").addHandler(logging.NullHandler())
