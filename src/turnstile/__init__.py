"""Turnstile: a FIFO execution scheduler with exact concurrency limits per action.

    from turnstile import Context, action

    @action("reports.render", max_concurrent=3, timeout="5m")
    async def render(context: Context, customer_id: int) -> dict: ...

Declare actions with `action`, `command_action` and `http_action`, when they run by themselves with
`schedule`, the shared resources that they use with `use`, and limits of starts with `rate`; submit executions
with `await render.submit(customer_id=7)`, by name with `Client` or `AsyncClient`, or with `submit_in` and
`submit_in_async` inside a database transaction. Each name is imported at its first use: `import turnstile`
alone loads no other module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnstile.client import (
        AsyncClient,
        AsyncHandle,
        Client,
        ExecutionFailed,
        Handle,
        InvalidResult,
        InvalidSetting,
        NotReceived,
        Rejected,
        Request,
        Status,
        TurnstileError,
        Unavailable,
        current_client,
        submit_in,
        submit_in_async,
        use_client,
    )
    from turnstile.worker import (
        Action,
        Context,
        PermanentError,
        TemporaryError,
        action,
        command_action,
        http_action,
        lifespan,
        on_start,
        on_stop,
        rate,
        schedule,
        use,
    )

    __version__: str

__all__ = [
    "Action",
    "AsyncClient",
    "AsyncHandle",
    "Client",
    "Context",
    "ExecutionFailed",
    "Handle",
    "InvalidResult",
    "InvalidSetting",
    "NotReceived",
    "PermanentError",
    "Rejected",
    "Request",
    "Status",
    "TemporaryError",
    "TurnstileError",
    "Unavailable",
    "action",
    "command_action",
    "current_client",
    "http_action",
    "lifespan",
    "on_start",
    "on_stop",
    "rate",
    "schedule",
    "submit_in",
    "submit_in_async",
    "use",
    "use_client",
]

_OF_WORKER = {"Action", "Context", "PermanentError", "TemporaryError"}
_OF_WORKER |= {"action", "command_action", "http_action", "lifespan", "on_start", "on_stop", "rate"}
_OF_WORKER |= {"schedule", "use"}
_MODULES = {name: "turnstile.worker" if name in _OF_WORKER else "turnstile.client" for name in __all__}

# Hidden from type checkers, for which it would make every name exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name at its first use (PEP 562)."""
        if name == "__version__":
            return import_module("turnstile.common.version").installed_version()
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
