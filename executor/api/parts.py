"""What the routes use: one value for an application, which each route gets as its dependency `Parts`."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Self, TypeAlias

from fastapi import Depends, Request

from turnstile.common.database import Database
from turnstile.executor.api.ends import Ends
from turnstile.executor.asking.asker import Asker
from turnstile.executor.dashboard.live import Live
from turnstile.executor.dead_letters.store import DeadLetters
from turnstile.executor.gauges import Gauges
from turnstile.executor.health import Health
from turnstile.executor.history.execution_reader import ExecutionReader
from turnstile.executor.history.executions import Executions
from turnstile.executor.inbox import Inbox
from turnstile.executor.queries.audit import Auditor
from turnstile.executor.queries.definition_reader import DefinitionReader
from turnstile.executor.queries.history_reader import HistoryReader
from turnstile.executor.queries.queue_reader import QueueReader
from turnstile.executor.queries.read_limiter import ReadLimiter
from turnstile.executor.queries.worker_reader import WorkerReader
from turnstile.executor.settings import ExecutorSettings
from turnstile.executor.stored_tokens import AcceptedTokens, TokenStore
from turnstile.executor.webhooks.deliveries import Deliveries


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """The parts of the service behind the API."""

    parameters_bytes_max: int
    stopping: asyncio.Event
    """Event streams end once it is set."""
    inbox: Inbox
    limiter: ReadLimiter
    executions: Executions
    ends: Ends
    execution_reader: ExecutionReader
    definitions: DefinitionReader
    history: HistoryReader
    queues: QueueReader
    workers: WorkerReader
    auditor: Auditor
    stored_tokens: TokenStore
    tokens: AcceptedTokens
    dead_letters: DeadLetters
    deliveries: Deliveries
    live: Live
    health: Health
    gauges: Gauges
    list_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lists of submissions are read one at a time."""

    @classmethod
    def over(
        cls,
        settings: ExecutorSettings,
        database: Database,
        asker: Asker,
        *,
        inbox: Inbox,
        dead_letters: DeadLetters,
        health: Health,
        stopping: asyncio.Event,
    ) -> Self:
        """Return the parts over one database, one leader that is asked, and the rest of the service."""
        limiter, seconds = ReadLimiter(), settings.stop_timeout
        executions, store = Executions(database, limiter), TokenStore(database)
        return cls(
            parameters_bytes_max=settings.parameters_bytes_max,
            stopping=stopping,
            inbox=inbox,
            limiter=limiter,
            executions=executions,
            ends=Ends(executions, stopping),
            execution_reader=ExecutionReader(executions, asker, health, stop_timeout_seconds=seconds),
            definitions=DefinitionReader(database, limiter, asker),
            history=HistoryReader(database, limiter),
            queues=QueueReader(database, limiter, asker),
            workers=WorkerReader(database, limiter, asker, stop_timeout_seconds=seconds),
            auditor=Auditor(database, asker),
            stored_tokens=store,
            tokens=AcceptedTokens(settings.accepted_tokens(), store, always_required=settings.is_exposed()),
            dead_letters=dead_letters,
            deliveries=Deliveries(database),
            live=Live(database, asker, health),
            health=health,
            gauges=Gauges(database, asker),
        )


def parts_of(request: Request) -> ApiParts:
    """Return the parts, for a route on the hot path: a dependency costs it 10 microseconds."""
    parts: ApiParts = request.app.state.parts
    return parts


async def _parts(request: Request) -> ApiParts:
    return parts_of(request)


Parts: TypeAlias = Annotated[ApiParts, Depends(_parts)]
