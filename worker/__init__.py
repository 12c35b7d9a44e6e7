"""Runs executions: what user code imports to declare its actions.

    from worker import Context, action

    @action("reports.render", max_concurrent=3, timeout="5m")
    async def render(context: Context, customer_id: int) -> dict: ...

Next: `worker.actions` collects what is declared here, `worker.runners` runs it.
"""

from common.domain.errors import PermanentError, TemporaryError
from worker.actions import action, command_action, http_action
from worker.context import Context, ExecutionStopped

__all__ = [
    "Context",
    "ExecutionStopped",
    "PermanentError",
    "TemporaryError",
    "action",
    "command_action",
    "http_action",
]
