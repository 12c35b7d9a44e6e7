"""What the HTTP API stands on: handed in by the composition root, replaced by simple ones in tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.database import Database
from turnstile.common.domain.errors import Overloaded, Unavailable
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.dead_letters import DeadLetters
from turnstile.executor.decisions import Admission, Deletion, Move, Retried, Verdict
from turnstile.executor.queue_manager import QueueManager
from turnstile.executor.settings import ExecutorSettings

_ANSWER_TIMEOUT_SECONDS: Final = 30.0
_MAYBE: Final = "it may have been done, or in part: look, or repeat it under the same idempotency key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The parts of the executor service that the API calls."""

    settings: ExecutorSettings
    database: Database
    queue_manager: QueueManager
    submit: Callable[[Sequence[Admission]], Awaitable[list[Verdict]]]
    """Admit in the order given, up to `batch_max` in one commit; one verdict each. Raises Unavailable."""
    put_actions: Callable[[Sequence[ActionDefinition], str], Awaitable[None]]
    """Store definitions, and who changed them; what a raised limit granted is handed over."""
    delete_action: Callable[[str, int, str], Awaitable[Deletion | None]]
    """Delete this action with at most so many that wait, and note who did; None: there is no such action."""
    cancel: Callable[[Sequence[ExecutionId], str | None], Awaitable[list[Move]]]
    """End what has not started, ask the workers of what runs; what does not exist is left out."""
    retry: Callable[[Sequence[tuple[ExecutionId, str | None]], str | None], Awaitable[list[Retried]]]
    """Ask for ended executions again, each under a key or none, in a trace or none; one answer each."""
    drain_worker: Callable[[str], Awaitable[bool]]
    """Ask a worker to leave; False: there is none that could."""
    dead_letters: DeadLetters
    readiness: Callable[[], dict[str, str | None]]
    """Name each server we depend on, with None or why it cannot be reached."""
    degraded: Callable[[], dict[str, str]] = dict
    """Name what does not work though the servers can be reached, like `pool gpu`, and why."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service is to stop: answers without an end of their own end then."""


@asynccontextmanager
async def answer_deadline() -> AsyncIterator[None]:
    """Bound a change; raises Unavailable, which says whether anybody knows what became of it."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable(f"no answer in time; {_MAYBE}") from None
    except Overloaded as error:
        raise Overloaded(f"{error}; nothing was done, repeat it later") from error
    except Unavailable as error:
        raise Unavailable(f"{error}; {_MAYBE}") from error
