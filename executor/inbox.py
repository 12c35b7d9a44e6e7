"""Commands of HTTP and the command line: rows for the leader, and the rows of its answers.

In: commands that were checked, each with an id. Out: the answers. A command is durable before it is decided,
so it is taken while no executor leads and while the broker is out; with the same id it is the same command,
however often it is stored. Commands of many tasks are stored in one statement, and one statement asks for all
answers that are awaited; an answer notifies no session.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias
from uuid import UUID, uuid4, uuid5

import asyncpg
from pydantic_core import from_json, to_json

from turnstile.common.batcher import Batcher
from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Code, Refusal, Unavailable
from turnstile.common.domain.states import Status
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.callers import Caller
from turnstile.executor.leader.door import CommandColumns, columns_of
from turnstile.executor.leader.ports import CancelExecutions, Command
from turnstile.executor.sql import statements

logger = logging.getLogger(__name__)

Answer: TypeAlias = Mapping[str, Any]

_STATEMENTS: Final = statements("inbox.sql")
ANSWER_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 0.002
_ASK_SECONDS_MAX: Final = 0.05
"""Between two questions for answers: at first, and after many without one."""
_LENGTHENED: Final = 1.5
_ASKED_MAX: Final = 5000
_STORED_MAX: Final = 1000
_CANCELS_MAX: Final = 500
"""Executions that one row cancels, so that one turn decides it."""
_PRUNE_SECONDS: Final = 5.0
_PRUNED_MAX: Final = 5000


class NotDecidedYet(Unavailable):
    """The commands are kept, and will be decided; each of these ids finds its answer later."""

    def __init__(self, command_ids: Sequence[UUID]) -> None:
        named = ", ".join(map(str, command_ids[:3]))
        super().__init__(f"kept, not decided yet: command {named}; repeat it with this id to see the answer")
        self.command_ids = tuple(command_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of one retry."""

    retry_of: int
    status: Status | None
    """Of the execution to retry; None: there is none."""
    answer: Answer | None
    """None: it is unknown, or has not ended."""


class _Stored(NamedTuple):
    command_id: UUID
    columns: CommandColumns


def refusal_of(answer: Answer) -> Refusal | None:
    """Return the refusal that an answer is, if it is one."""
    return Refusal(Code(answer["code"]), answer["message"]) if "code" in answer else None


class Inbox:
    """The inbox, as one process uses it. Safe to share between tasks; `run` must run beside them."""

    def __init__(self, database: Database, *, waiting_bytes_max: int | None = None) -> None:
        self._database = database
        self._storing: Batcher[_Stored, None] = Batcher(
            self._store,
            items_max=_STORED_MAX,
            size_bytes=lambda each: each.columns.size_bytes,
            waiting_bytes_max=waiting_bytes_max,
        )
        self._awaited: dict[UUID, list[asyncio.Future[Answer]]] = {}
        self._has_awaited = asyncio.Event()
        self._not_read = Episodes(logger, "answers_not_read")
        self._pruned_until = "-infinity"

    async def run(self) -> NoReturn:
        """Store commands, ask for answers, and delete old ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._storing.run(), name="inbox")
            tasks.create_task(self._ask(), name="answers")
            tasks.create_task(self._prune(), name="old answers")
        raise AssertionError("ends by cancellation only")

    # Commands.

    async def decide(
        self,
        commands: Sequence[Command],
        *,
        command_ids: Sequence[UUID] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> list[Answer]:
        """Have commands decided in this order; one answer each.

        Raises Unavailable, which says whether they are stored: NotDecidedYet, or unknown; Overloaded: they
        are not. A command that is given again under its id is not decided again.
        """
        ids = [uuid4() for _ in commands] if command_ids is None else list(command_ids)
        rows = [_Stored(each, columns_of(command)) for each, command in zip(ids, commands, strict=True)]
        async with self._answers_to(ids, seconds) as answers:
            await self._storing.submit_all(rows)
            answers.is_stored = True
            return await answers.all()

    async def cancel(
        self,
        execution_ids: Sequence[int],
        reason: str | None,
        caller: Caller,
        *,
        command_id: UUID | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> list[tuple[int, Status, Status]]:
        """Cancel in this order; return id, status before and after of each that exists.

        Many are divided: each part is decided, and answered, in one turn.
        """
        first_id = command_id or uuid4()
        parts = [
            CancelExecutions(
                execution_ids=tuple(execution_ids[start : start + _CANCELS_MAX]),
                reason=reason,
                changed_by=caller._asdict(),
            )
            for start in range(0, len(execution_ids), _CANCELS_MAX)
        ]
        ids = [uuid5(first_id, str(number)) if number else first_id for number in range(len(parts))]
        answers = await self.decide(parts, command_ids=ids, seconds=seconds)
        return [
            (each, Status(before), Status(after))
            for answer in answers
            for each, before, after in _items(answer)
        ]

    async def retry(
        self,
        requests: Sequence[tuple[int, str | None]],
        traceparent: str | None,
        caller: Caller,
        *,
        parameters: bytes | None = None,
        may_be_urgent: bool = False,
        command_id: UUID | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> list[Retried]:
        """Request ended executions again, each under an idempotency key or None; one result each, in order.

        The request is copied from the row of the ended execution, which never changes. One with other
        `parameters` is decided like a new one.
        """
        first_id = command_id or uuid4()
        ids = [uuid5(first_id, str(number)) for number in range(len(requests))]
        async with self._answers_to(ids, seconds) as answers:
            found = await self._database.fetch(
                _STATEMENTS["store_retries"], ids, [each for each, _ in requests],
                [key for _, key in requests], traceparent, to_json(caller._asdict()).decode(),
                None if parameters is None else parameters.decode(), may_be_urgent,
            )  # fmt: skip
            answers.is_stored = True
            answers.forget(row["command_id"] for row in found if not row["has_ended"])
            given = {UUID(bytes=row["command_id"].bytes): row for row in found}
            stored = dict(zip(answers.ids, await answers.all(), strict=True))
        return [
            Retried(
                retry_of=retry_of,
                status=None if given[each]["status"] is None else Status(given[each]["status"]),
                answer=stored.get(each),
            )
            for each, (retry_of, _) in zip(ids, requests, strict=True)
        ]

    async def record_bulk(
        self, verb: str, action_ref: str | None, request: Mapping[str, Any], caller: Caller
    ) -> None:
        """Record that an operator is about to change all executions that a filter selects."""
        shown = to_json(request).decode()
        await self._database.fetch(_STATEMENTS["record_bulk"], *caller, verb, action_ref, shown)

    async def _store(self, rows: Sequence[_Stored]) -> list[None]:
        columns = [each.columns for each in rows]
        await self._database.fetch(
            _STATEMENTS["store"], [each.command_id for each in rows], [each.kind for each in columns],
            [each.is_bulk for each in columns], [each.body for each in columns],
            [each.parameters for each in columns], [each.metadata for each in columns],
        )  # fmt: skip
        reached(CrashPoint.COMMANDS_STORED)
        return [None] * len(rows)

    # Answers.

    def _answers_to(self, ids: Sequence[UUID], seconds: float) -> "_Answers":
        return _Answers(self, ids, seconds)

    def expect(self, command_id: UUID) -> "asyncio.Future[Answer]":
        """Ask for the answer to a command from now on."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(command_id, []).append(future)
        self._has_awaited.set()
        return future

    def give_up(self, command_id: UUID, future: "asyncio.Future[Answer]") -> None:
        """Ask no more, unless another caller gave the same command."""
        futures = self._awaited.get(command_id, [])
        if future in futures:
            futures.remove(future)
            if not futures:
                del self._awaited[command_id]

    async def _ask(self) -> NoReturn:
        pause = _ASK_SECONDS
        while True:
            if not self._awaited:
                self._has_awaited.clear()
                await self._has_awaited.wait()
                pause = _ASK_SECONDS
            await asyncio.sleep(pause)
            try:
                count = await self._read_answers()
                self._not_read.works("answers")
            except (Unavailable, asyncpg.PostgresError) as error:
                self._not_read.failed("answers", reason=str(error))
                count = 0
            # Under load answers come with most questions; while no executor leads, few are asked.
            pause = _ASK_SECONDS if count else min(pause * _LENGTHENED, _ASK_SECONDS_MAX)

    async def _read_answers(self) -> int:
        wanted = list(self._awaited)[:_ASKED_MAX]
        found = await self._database.fetch(_STATEMENTS["answers"], wanted)
        for row in found:
            answer = from_json(row["body"])
            for future in self._awaited.pop(UUID(bytes=row["command_id"].bytes), ()):
                if not future.done():
                    future.set_result(answer)
        if len(self._awaited) > _ASKED_MAX:
            # Those that were not asked for come first the next time.
            for each in wanted:
                if each in self._awaited:
                    self._awaited[each] = self._awaited.pop(each)
        return len(found)

    async def _prune(self) -> NoReturn:
        """Delete old answers. Rows that an old snapshot keeps are behind the instant where it goes on."""
        while True:
            await asyncio.sleep(_PRUNE_SECONDS)
            with suppress(Unavailable, asyncpg.PostgresError):
                while await self.prune() == _PRUNED_MAX:
                    pass

    async def prune(self) -> int:
        """Delete the oldest answers whose time is over, in bounded number; return how many."""
        row = await self._database.fetchrow(_STATEMENTS["prune"], self._pruned_until, _PRUNED_MAX)
        if row is None or row["newest"] is None:
            return 0
        self._pruned_until = row["newest"]
        return int(row["deleted"])


class _Answers:
    """The answers to some commands, and the deadline of all of it."""

    def __init__(self, inbox: Inbox, ids: Sequence[UUID], seconds: float) -> None:
        self._inbox = inbox
        self.ids = list(ids)
        self.is_stored = False
        self._awaited: list[tuple[UUID, asyncio.Future[Answer]]] = []
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> "_Answers":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for each in self._awaited:
            self._inbox.give_up(*each)
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            if self.is_stored:
                raise NotDecidedYet(self.ids) from None
            raise Unavailable(
                "no answer in time; all or part of it may be stored: repeat it under the same command id"
            ) from None

    def forget(self, ids: Iterable[Any]) -> None:
        """Wait for no answer to these."""
        over = {UUID(bytes=each.bytes) for each in ids}
        self.ids = [each for each in self.ids if each not in over]

    async def all(self) -> list[Answer]:
        """Wait for all answers."""
        self._awaited = [(each, self._inbox.expect(each)) for each in self.ids]
        return [await future for _, future in self._awaited]


def _items(answer: Answer) -> Sequence[tuple[int, str, str]]:
    refusal = refusal_of(answer)
    if refusal is not None:
        raise refusal
    items: Sequence[tuple[int, str, str]] = answer["items"]
    return items
