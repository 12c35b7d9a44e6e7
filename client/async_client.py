"""The client for code with an event loop: the front that users see.

In: calls. Out: typed values, or the errors of `errors`. An acknowledged submit is in the record (P5), a list
keeps its order (P2), and a wait ends whatever message was lost (P4). Next: `submissions`, `ends` and `api` do
the work; `sync_client` blocks on this one.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, Unpack
from uuid import uuid4

from aio_pika.abc import AbstractChannel
from pydantic import JsonValue

from turnstile.client.answers import Answers
from turnstile.client.api import Api
from turnstile.client.ends import Completion, Ends
from turnstile.client.errors import ExecutionFailed, Rejected
from turnstile.client.outbox import Outbox
from turnstile.client.request import Options, Request, cancel_request_message
from turnstile.client.shapes import Execution, ExecutionPage, QueueStats
from turnstile.client.submissions import Submissions, Submitted
from turnstile.common.api_token import CA_FILE, api_token
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.domain.durations import parse_duration
from turnstile.common.domain.states import Status
from turnstile.common.requests import PARAMETERS_BYTES_MAX

# Inside the class, `list` is the name of a method.
SubmittedOrRejected = list[Submitted | Rejected]
Completions = list[Completion]


class AsyncClient:
    """Talks to Turnstile while the `async with` block lasts. Safe to share between the tasks of one loop."""

    def __init__(
        self,
        *,
        amqp_url: str = "amqp://guest:guest@127.0.0.1:5672/",
        http_url: str = "http://127.0.0.1:8000",
        token: str | None = None,
        ca_file: str | None = None,
        answer_timeout: str | float = 30.0,
        parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
        name: str = "turnstile-client",
    ) -> None:
        """`name` is what the broker calls the connections; `token` is sent over HTTP.

        Without one it is taken from TURNSTILE_API_TOKEN, or the file that TURNSTILE_API_TOKEN_FILE names.
        `ca_file`, or TURNSTILE_API_CA_FILE, names the authority that signed the API's certificate.

        `answer_timeout` bounds each submit and cancel over all repeats, like `30s` or seconds;
        `parameters_bytes_max` is the executor's setting of that name.
        """
        self._answer_timeout_seconds = parse_duration(answer_timeout)
        queues = f"client.{uuid4()}"
        self._publisher = Publisher(
            amqp_url,
            name=f"{name}-publisher",
            declare=_check_exchange,
            # Short, so that the outbox sees its own deadlines: it is the one that tries again.
            timeouts=BrokerTimeouts(wait_seconds=0.5),
        )
        self._consumer = ConsumerConnection(amqp_url, name=f"{name}-consumer")
        self._api = Api(
            http_url,
            token=api_token(os.environ) if token is None else token,
            ca_file=os.environ.get(CA_FILE) if ca_file is None else ca_file,
        )
        self._outbox = Outbox(self._publisher)
        self._answers = Answers(self._consumer, self._outbox, queue=f"{queues}.answers")
        self._ends = Ends(self._consumer, self._api, queue=f"{queues}.ends")
        self._submissions = Submissions(
            self._answers,
            timeout_seconds=self._answer_timeout_seconds,
            parameters_bytes_max=parameters_bytes_max,
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to connect; what needs a connection waits for it."""
        assert self._running is None, "a client is for one `async with`"
        self._running = asyncio.create_task(self._run(), name="turnstile-client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        assert self._running is not None
        self._running.cancel()
        try:
            await asyncio.wait({self._running})
            if not self._running.cancelled():
                self._running.result()
        finally:
            await self._api.close()

    async def submit(
        self, action_ref: str, parameters: Mapping[str, object] | None = None, **options: Unpack[Options]
    ) -> Submitted:
        """Ask for a run of an action; return once it is in the record. The options are those of `Request`.

        Raises Rejected, or Unavailable where no answer came in time: whether it will be run is then
        unknown, and with an idempotency key it can be submitted again without harm.
        """
        (answer,) = await self.submit_many(
            [Request(action_ref=action_ref, parameters=parameters or {}, **options)]
        )
        if isinstance(answer, Rejected):
            raise answer
        return answer

    async def submit_many(self, requests: Iterable[Request]) -> SubmittedOrRejected:
        """Submit in order, many at once; return an answer for each, in order.

        Raises Unavailable where one got no answer in time; the others stay submitted.
        """
        return await self._submissions.submit_all(requests)

    async def run(
        self,
        action_ref: str,
        parameters: Mapping[str, object] | None = None,
        *,
        wait_timeout: str | float | None = None,
        **options: Unpack[Options],
    ) -> JsonValue:
        """Submit, wait, and return the result.

        Raises what `submit` and `wait` raise, and ExecutionFailed where it ended as anything but completed.
        """
        watched = self._ends.watch()
        submitted = await self.submit(action_ref, parameters, **options)
        # An execution known before may have ended before: only the record tells at once.
        look_at_once = submitted.duplicate or not watched
        async with _limit(wait_timeout):
            completion = await self._ends.wait(submitted.execution_id, look_at_once=look_at_once)
        if completion.status is not Status.COMPLETED:
            raise ExecutionFailed(completion.execution_id, completion.status, completion.error)
        return completion.result

    async def wait(
        self,
        execution_id: int,
        timeout: str | float | None = None,  # noqa: ASYNC109  (the blocking client has no asyncio.timeout)
    ) -> Completion:
        """Return how an execution ended, as soon as it has; None: however long it takes.

        Raises TimeoutError, and Rejected where there is no such execution.
        """
        async with _limit(timeout):
            return await self._ends.wait(execution_id)

    async def wait_many(
        self,
        execution_ids: Iterable[int],
        timeout: str | float | None = None,  # noqa: ASYNC109  (see wait)
    ) -> Completions:
        """Return how each of them ended, in the order given, once all have."""
        try:
            async with _limit(timeout), asyncio.TaskGroup() as tasks:
                waits = [
                    tasks.create_task(self._ends.wait(each), name=f"wait-{each}") for each in execution_ids
                ]
        except ExceptionGroup as group:
            # The first is the reason; the rest were cancelled for it.
            raise group.exceptions[0] from None
        return [wait.result() for wait in waits]

    async def cancel(
        self,
        execution_id: int | None = None,
        *,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Ask for an execution to stop, by its id or its key; return once the broker has the request.

        What waits ends at once, what runs is asked to; `wait` tells the end. Raises Rejected, Unavailable.
        """
        message = cancel_request_message(execution_id, idempotency_key, reason)
        give_up_at = asyncio.get_running_loop().time() + self._answer_timeout_seconds
        await self._outbox.send([message], give_up_at=give_up_at)

    async def get(self, execution_id: int) -> Execution:
        """Read one execution with its position, what it waits for and its attempts (P10)."""
        return await self._api.execution(execution_id)

    async def list(
        self,
        *,
        action_ref: str | None = None,
        status: Sequence[Status] = (),
        concurrency_key: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ExecutionPage:
        """Read a page of executions, newest first; `cursor` is the `next_cursor` of the page before."""
        return await self._api.executions(
            action_ref=action_ref,
            status=status,
            concurrency_key=concurrency_key,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
            cursor=cursor,
        )

    async def queue_stats(self, action_ref: str) -> QueueStats:
        """Read how the queues of an action stand."""
        return await self._api.queue_stats(action_ref)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run(), name="publisher")
            tasks.create_task(self._consumer.run(), name="consumer")
            tasks.create_task(self._outbox.run(), name="outbox")
            tasks.create_task(self._answers.run(), name="answers")
            tasks.create_task(self._ends.run(), name="ends")


def _limit(timeout: str | float | None) -> asyncio.Timeout:
    return asyncio.timeout(None if timeout is None else parse_duration(timeout))


async def _check_exchange(channel: AbstractChannel) -> None:
    # Only looked for: a user of the broker who may submit need not be one who may declare.
    await channel.get_exchange(EXECUTIONS)
