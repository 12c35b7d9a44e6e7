"""What the HTTP API stands on: handed in by the composition root, replaced by simple ones in tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from common.action_definition import ActionDefinition
from common.database import Database
from common.domain.errors import Unavailable
from common.domain.identifiers import ExecutionId
from executor.dead_letters import DeadLetters
from executor.decisions import Admission, Move, Verdict
from executor.queue_manager import QueueManager
from executor.settings import ExecutorSettings

_ANSWER_TIMEOUT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The parts of the executor service that the API calls."""

    settings: ExecutorSettings
    database: Database
    queue_manager: QueueManager
    submit: Callable[[Sequence[Admission]], Awaitable[list[Verdict]]]
    """Admit in the order given, in one commit with others; one verdict each. Raises Unavailable."""
    put_actions: Callable[[Sequence[ActionDefinition]], Awaitable[None]]
    """Store definitions; what a raised limit granted is handed over."""
    cancel: Callable[[ExecutionId, str | None], Awaitable[Move | None]]
    """End what has not started, ask the worker of what runs; None: there is no such execution."""
    dead_letters: DeadLetters
    readiness: Callable[[], dict[str, str | None]]
    """Name each server we depend on, with None or why it cannot be reached."""


@asynccontextmanager
async def answer_deadline() -> AsyncIterator[None]:
    """Bound the wait for a part of the service; raises Unavailable when it does not answer in time."""
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable("no answer in time; it may still happen: look before you repeat it") from None
