"""The API with which user code declares its actions.

from turnstile.worker import Context, action

@action("reports.render", max_concurrent=3, timeout="5m")
async def render(context: Context, customer_id: int) -> dict: ...
"""

from turnstile.common.domain.errors import PermanentError, TemporaryError
from turnstile.worker.actions import action, command_action, http_action, rate, schedule, use
from turnstile.worker.context import Context, ExecutionStopped
from turnstile.worker.lifespan import lifespan, on_start, on_stop
from turnstile.worker.submitting import Action

__all__ = [
    "Action",
    "Context",
    "ExecutionStopped",
    "PermanentError",
    "TemporaryError",
    "action",
    "command_action",
    "http_action",
    "lifespan",
    "on_start",
    "on_stop",
    "rate",
    "schedule",
    "use",
]
