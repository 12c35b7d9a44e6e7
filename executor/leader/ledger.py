"""The ledger: the only place that writes what the leader decided, and loads it again.

A turn is one statement: the parts of `turn.sql` that it needs, all of them behind the fence, in one round
trip and one commit. It writes by key, so neither old snapshots nor dead rows change its cost (P15), and
nothing of a deposed leader is written (P6). `tables.sql` says in constraints what a wrong leader can never
write.
"""

import asyncio
import logging
import math
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import asyncpg

from turnstile.common.database import REFUSED_BY_DATABASE, REPEATABLE, DatabaseHosts
from turnstile.common.domain.states import Status
from turnstile.common.requests import PARAMETERS_BYTES_MAX, request_bytes_max
from turnstile.executor.leader import ledger_rows as rows
from turnstile.executor.leader.binary_arrays import use_encoded_arrays
from turnstile.executor.leader.door import RefusalOf, command_of
from turnstile.executor.leader.inbox_bound import InboxBound
from turnstile.executor.leader.inbox_watch import InboxWatch
from turnstile.executor.leader.ledger_rows import Part, statement, turn_part
from turnstile.executor.leader.ledger_session import Session, no_refusals
from turnstile.executor.leader.ports import (
    Deposed,
    InboxRow,
    NewestTurn,
    Outcome,
    OutcomeUnknown,
    StoredRequest,
    TurnRefused,
)
from turnstile.executor.leader.records import EventRow, Known, Loaded, Turn

if TYPE_CHECKING:
    from turnstile.executor.leader.ledger_session import Connection, Statement

logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 5.0
_LOAD_SECONDS: Final = 120.0
_TAKE_OVER_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 1.0
"""How long a takeover waits for a turn in flight before it ends its session."""
_LOCK_TIMEOUT: Final = "100ms"
_CLOCK_QUESTIONS: Final = 5
"""How long a turn waits for a row that another session has locked."""
_PENDING_SECONDS: Final = 0.5
"""How often pending ends are tried."""
_HOLD_TRIES: Final = 20
"""How often a takeover looks, every 10 ms, whether the session that it has ended is gone."""
_LEADER, _CANDIDATE, _READS = 1, 2, 4
"""Advisory locks: held by the leader's session; shared by candidates that have the broker; held while the
leader reads commands without a notification. Writers of commands share 3 and 4 (`tables.sql`)."""
_INBOX_BYTES: Final = 8 * 1024 * 1024
"""Commands of one poll take not more, except a single one."""
_BULK_COUNT: Final = 2
"""How many commands of a poll name many executions."""
_READ_SECONDS: Final = 0.05
"""How long a poll reads and checks commands; the others come with the next one."""
_EVENTS: Final = (5_000, 8 * 1024 * 1024)
"""How many stored events are read at once, and how many bytes of them; the first one in any case."""
_PACKED: Final = 4
"""A document in the database's format is at most so many times as large as its text."""

_BY_KEY: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Every row is found by its key, whatever a statistic says."""
_PARAMETER: Final = re.compile(r"\$(\d+)")
_TURN_PARAMETERS: Final = 14
_REFUSED_CONTENT: Final = (*REFUSED_BY_DATABASE, UnicodeEncodeError, struct.error, OverflowError, ValueError)


class Ledger:
    """The database of one executor, as `ports.Store` describes it."""

    def __init__(
        self,
        database_url: str,
        *,
        on_command: Callable[[], None] | None = None,
        parameters_bytes_max: int = PARAMETERS_BYTES_MAX,
        refusal_of: RefusalOf | None = None,
    ) -> None:
        """`on_command` is called when the inbox may have commands; None: the leader reads at its pace.

        `refusal_of` checks the parameters of requests; None: the worker alone checks them.
        """
        hosts = DatabaseHosts(database_url, connect_seconds=_CONNECT_SECONDS)
        self.refusals = no_refusals()
        self._writer = Session(
            hosts, application_name="turnstile leader", seconds=_CALL_SECONDS,
            settings={**_BY_KEY, "lock_timeout": _LOCK_TIMEOUT}, prepare=use_encoded_arrays,
            refusals=self.refusals,
        )  # fmt: skip
        """Writes turns. Holds the advisory lock that shows candidates that this leader lives."""
        self._reader = Session(
            hosts, application_name="turnstile ledger", seconds=_CALL_SECONDS,
            settings={**_BY_KEY, "lock_timeout": "2s"}, unknown=REPEATABLE, refusals=self.refusals,
        )  # fmt: skip
        self._helper = Session(
            hosts, application_name="turnstile ledger helper", seconds=_CALL_SECONDS,
            settings={**_BY_KEY, "lock_timeout": _LOCK_TIMEOUT}, refusals=self.refusals,
        )  # fmt: skip
        """For what happens while the others wait."""
        self._bodies = Session(
            hosts, application_name="turnstile ledger bodies", seconds=_CALL_SECONDS,
            settings={**_BY_KEY, "lock_timeout": "2s"}, unknown=(asyncpg.PostgresError,),
            refusals=self.refusals,
        )  # fmt: skip
        """Stores large bodies, which takes long."""
        self._executor_id = ""
        self._newest = _Newest(NewestTurn(epoch=0, number=0), counts=False)
        self._announced_by: Connection | None = None
        """The session that says that this executor could lead."""
        self._inbox = InboxBound()
        self._watch = (
            None
            if on_command is None
            else InboxWatch(hosts, on_command=on_command, on_reset=self._reset_inbox)
        )
        self._parameters_bytes_max, self._refusal_of = parameters_bytes_max, refusal_of
        self._pending: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close the sessions."""
        if self._pending is not None:
            self._pending.cancel()
            with suppress(asyncio.CancelledError):
                await self._pending
        await self._stop_watching()
        await asyncio.gather(
            *(each.close() for each in (self._writer, self._reader, self._helper, self._bodies))
        )

    # Leadership.

    def leads_as(self, executor_id: str) -> None:
        """Read as the executor that took over in another session."""
        self._executor_id = executor_id

    async def take_over(self, executor_id: str, *, above: int = 0, only_if_leading: bool = False) -> int:
        """Raise the epoch above earlier ones, `above` and the clock, to one that none had; return it."""
        self.leads_as(executor_id)
        await self._stop_watching()
        # A statement of an earlier leadership may still run there.
        self._writer.drop()
        async with (
            self._writer.use(_TAKE_OVER_SECONDS, call="take_over") as connection,
            connection.transaction(),
        ):
            await connection.execute("SET LOCAL lock_timeout = 0")
            # The driver knows another one where a pooler is in between.
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            impatience = asyncio.ensure_future(self._end_blockers(pid))
            try:
                epoch = await connection.fetchval(statement("take_over"), executor_id, above, only_if_leading)
            finally:
                impatience.cancel()
            if epoch is None:
                raise Deposed
            # A statement of its own: it sees the turn for which the first one waited.
            newest = await connection.fetchrow(statement("newest"))
            # Before the commit, for which the next takeover waits: of two sessions, the earlier one is ended.
            await _show_life(connection)
        assert newest is not None
        self._newest = _Newest(NewestTurn(epoch=newest["epoch"], number=newest["number"]), newest["counts"])
        self._inbox = InboxBound()
        if self._watch is not None:
            self._watch.start()
        return int(epoch)

    async def _end_blockers(self, pid: int) -> None:
        """End the sessions that a takeover has waited for too long. All executors have the same role."""
        await asyncio.sleep(_PATIENCE_SECONDS)
        while True:
            with suppress(OutcomeUnknown, asyncpg.PostgresError):
                async with self._helper.use() as helper:
                    await helper.execute(statement("blocked_by").replace("$1", str(pid)))
            await asyncio.sleep(_PATIENCE_SECONDS / 10)

    def _reset_inbox(self) -> None:
        self._inbox.reset()

    async def _stop_watching(self) -> None:
        if self._watch is not None:
            await self._watch.stop()

    async def announce(self, executor_id: str, *, has_broker: bool) -> bool:
        """Say whether this executor could lead; return whether another one, with the broker, says so."""
        async with self._reader.use() as connection:
            if has_broker != (self._announced_by is connection):
                await connection.fetchval(statement("announce" if has_broker else "unannounce"), _CANDIDATE)
                self._announced_by = connection if has_broker else None
            return bool(await connection.fetch(statement("held_by"), _CANDIDATE))

    async def resign(self) -> None:
        """Let go of what shows candidates that this leader lives: they take over at once."""
        await self._stop_watching()
        await self._writer.close()

    async def leader_seen(self) -> tuple[NewestTurn | None, bool]:
        """Return the newest turn row, and whether no session of a leader is connected."""
        await self._stop_watching()
        async with self._reader.use() as connection:
            newest = await connection.fetchrow(statement("newest"))
            held = await connection.fetch(statement("held_by"), _LEADER)
        return _turn_of(newest), not held

    async def newest_turn(self) -> NewestTurn | None:
        """Return the newest turn row."""
        async with self._reader.use() as connection:
            return _turn_of(await connection.fetchrow(statement("newest")))

    # Turns.

    async def write(self, turn: Turn) -> None:
        """Write a turn in one statement that checks epoch and executor.

        After a refusal that will pass, the same statement is tried again. Ends whose rows other sessions have
        locked are written as pending ones, so that they delay only themselves.
        """
        locked: frozenset[int] = frozenset()
        deadline = asyncio.get_running_loop().time() + _CALL_SECONDS
        while True:
            try:
                left_seconds = deadline - asyncio.get_running_loop().time()
                async with self._writer.use(left_seconds, call="turn") as connection:
                    await self._send(connection, turn, locked)
                break
            except REPEATABLE as error:
                logger.info("turn_repeated", extra={"epoch": turn.epoch, "reason": str(error)})
                if isinstance(error, asyncpg.LockNotAvailableError):
                    locked |= await self._locked([row.id for row in turn.ended])
            except _REFUSED_CONTENT as error:
                raise await self._refusal(turn, error) from error
        if locked:
            self._watch_pending()

    async def store_body(self, parameters: bytes, metadata: bytes | None) -> UUID | None:
        """Store what a later turn admits; return its key. None: it failed, and the turn has to store it."""
        body_id = uuid4()
        try:
            async with self._bodies.use() as connection:
                text = None if metadata is None else metadata.decode()
                await connection.execute(statement("store_body"), body_id, parameters.decode(), text)
        except OutcomeUnknown as error:
            logger.info("body_not_stored", extra={"reason": str(error)})
            return None
        return body_id

    async def _send(self, connection: "Connection", turn: Turn, locked: Collection[int]) -> None:
        parts = rows.parts_of(turn, locked)
        forgets = self._forgets(turn)
        key = (forgets, *[part.name for part, _ in parts])
        values: list[Any] = self._turn_values(turn, parts)
        for part, of_part in parts:
            values += part.parameters(of_part)
        prepared = await self._writer.prepared(key, lambda: _turn_text([part for part, _ in parts], forgets))
        if not await prepared.fetchval(*values):
            raise Deposed
        newest = NewestTurn(epoch=turn.epoch, number=turn.number)
        self._newest = _Newest(newest, counts=bool(turn.journal) or turn.checkpoint is not None)

    def _forgets(self, turn: Turn) -> str | None:
        """Return the part that deletes turn rows."""
        if turn.checkpoint is not None:
            return "turns_over"
        return None if self._newest.counts else "turn_over"

    def _turn_values(self, turn: Turn, parts: Sequence[tuple[Part, Sequence[Any]]]) -> list[Any]:
        counters = [counter for row in turn.granted for counter in row.counters]
        ends = sum(len(of_part) for part, of_part in parts if part.name == "ended")
        return [
            turn.epoch, self._executor_id, self._newest.turn.epoch, self._newest.turn.number, turn.number,
            turn.at,
            turn.low_id, turn.reserved_id, max((row.id for row in turn.admitted), default=None),
            min(counters, default=None), max(counters, default=None), ends,
            None if turn.checkpoint is not None else rows.journal_text(turn.journal),
            rows.checkpoint_text(turn.checkpoint),
        ]  # fmt: skip

    async def _locked(self, ids: Sequence[int]) -> frozenset[int]:
        """Return which of these living executions other sessions have locked."""
        if not ids:
            return frozenset()
        try:
            async with self._helper.use() as connection:
                transaction = connection.transaction()
                await transaction.start()
                try:
                    living = await connection.fetch(statement("living"), ids)
                    free = await connection.fetch(statement("unlocked"), ids)
                finally:
                    await transaction.rollback()
        except REPEATABLE:
            # The whole table is locked.
            return frozenset()
        return frozenset(row["id"] for row in living) - frozenset(row["id"] for row in free)

    async def _refusal(self, turn: Turn, error: Exception) -> TurnRefused:
        """Return the error of a refused turn, with the execution whose content caused it, if found."""
        # Without the details, which show the content.
        reason = getattr(error, "message", None) or str(error)
        if getattr(error, "constraint_name", None) is not None:
            return TurnRefused(reason)
        bad = await self._first_bad(turn, [*turn.admitted, *turn.ended, *turn.attempts])
        ids = () if bad is None else (getattr(bad, "id", None) or bad.execution_id,)
        return TurnRefused(reason, ids)

    async def _first_bad(self, turn: Turn, suspects: Sequence[Any]) -> Any:
        """Return a row that is refused also without the others, by halves; None if there is none."""
        if await self._is_refused(turn, ()) or not await self._is_refused(turn, suspects):
            return None
        while len(suspects) > 1:
            half = len(suspects) // 2
            if await self._is_refused(turn, suspects[:half]):
                suspects = suspects[:half]
            elif await self._is_refused(turn, suspects[half:]):
                suspects = suspects[half:]
            else:
                return None
        return suspects[0]

    async def _is_refused(self, turn: Turn, suspects: Sequence[Any]) -> bool:
        """Try to write some rows of a turn, and roll back."""
        ids = set(map(id, suspects))
        part = Turn(
            epoch=turn.epoch, number=turn.number, at=turn.at, reserved_id=turn.reserved_id,
            admitted=[row for row in turn.admitted if id(row) in ids],
            ended=[row for row in turn.ended if id(row) in ids],
            attempts=[row for row in turn.attempts if id(row) in ids],
        )  # fmt: skip
        newest = self._newest
        try:
            async with self._writer.use() as connection:
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await self._send(connection, part, ())
                finally:
                    await transaction.rollback()
        except REPEATABLE:
            return False
        except _REFUSED_CONTENT as error:
            return getattr(error, "constraint_name", None) is None
        finally:
            self._newest = newest
        return False

    # Pending ends.

    def _watch_pending(self) -> None:
        if self._pending is None or self._pending.done():
            self._pending = asyncio.create_task(self._write_pending(), name="pending ends")

    async def _write_pending(self) -> None:
        """Write pending ends until none is left; those of locked executions wait for a later round."""
        while True:
            with suppress(OutcomeUnknown, asyncpg.PostgresError):
                if not await self.write_pending():
                    return
            await asyncio.sleep(_PENDING_SECONDS)

    async def write_pending(self) -> bool:
        """Write the pending ends that can be written; return whether others are left."""
        async with self._helper.use() as connection:
            await connection.execute(statement("write_pending"))
            return bool(await connection.fetchval(statement("has_pending")))

    # Reading.

    async def load(self, epoch: int) -> Loaded:
        """Read everything, in one snapshot newer than the epoch; `now` is the instant of the return."""
        async with (
            self._reader.use(_LOAD_SECONDS, call="load") as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            fence = await connection.fetchrow(statement("fence_of"), epoch, self._executor_id)
            if fence is None:
                raise Deposed
            newest = await connection.fetchrow(statement("newest"))
            assert newest is not None
            loaded = await _load(connection, epoch, fence["now"], newest)
            has_pending = await connection.fetchval(statement("has_pending"))
            ahead = await _ahead_of_loop(connection)
        if has_pending:
            self._watch_pending()
        return replace(loaded, now=asyncio.get_running_loop().time() + ahead)

    async def look_up(
        self, delivery_keys: Sequence[UUID], idempotency_keys: Sequence[str], execution_ids: Sequence[int]
    ) -> Mapping[UUID | str | int, Known]:
        """Return the executions that were admitted under these keys or have these ids."""
        found: dict[UUID | str | int, Known] = {}
        wanted = {*delivery_keys, *idempotency_keys, *execution_ids}
        for row in await self._fetch("look_up", delivery_keys, idempotency_keys, execution_ids):
            known = Known(
                execution_id=row["id"], request_hash=UUID(bytes=row["request_hash"].bytes),
                status=Status(row["status"]), action_ref=row["action_ref"], key=row["key"],
                priority=row["priority"],
            )  # fmt: skip
            delivery_key = row["delivery_key"]
            keys = (delivery_key and UUID(bytes=delivery_key.bytes), row["idempotency_key"], row["id"])
            found |= {key: known for key in keys if key in wanted}
        return found

    async def requests_of(self, execution_ids: Sequence[int]) -> Mapping[int, StoredRequest]:
        """Return what offers need of these executions."""
        found = await self._fetch("requests_of", execution_ids)
        return {row["id"]: rows.stored_request_of(row) for row in found}

    async def traces_of(self, execution_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the trace contexts of these executions, of those that have one."""
        return {row["id"]: row["traceparent"] for row in await self._fetch("traces_of", execution_ids)}

    async def events(self, after_id: int) -> Sequence[EventRow]:
        """Return the first stored events behind this one."""
        return [rows.event_of(row) for row in await self._fetch("events", after_id, *_EVENTS)]

    async def outcomes(self, execution_ids: Sequence[int]) -> Mapping[int, Outcome]:
        """Return those of these executions that have ended."""
        return {
            row["id"]: Outcome(
                execution_id=row["id"], action_ref=row["action_ref"], status=Status(row["status"]),
                attempt=row["attempt"], result=None if row["result"] is None else row["result"].encode(),
                error=None if row["error_type"] is None else (row["error_type"], row["error_message"]),
                completed_at=row["completed_at"], traceparent=row["traceparent"],
            )
            for row in await self._fetch("outcomes", execution_ids)
        }  # fmt: skip

    async def inbox(self, count: int) -> Sequence[InboxRow]:
        """Return the first commands that no turn has decided; few of those that name many executions."""
        listed: tuple[int, frozenset[str]] | None = None
        async with self._reader.use(call="inbox") as connection:
            if self._inbox.is_due(asyncio.get_running_loop().time()):
                # In this order: who enters after the newest id was read may have drawn it.
                newest_id = await connection.fetchval(statement("inbox_newest"))
                listed = newest_id, frozenset(await connection.fetchval(statement("entering")))
            prepared: Statement = await self._reader.prepared("inbox", lambda: statement("inbox"))
            found = await prepared.fetch(
                self._inbox.from_id, count, min(_BULK_COUNT, count), _INBOX_BYTES,
                _PACKED * request_bytes_max(self._parameters_bytes_max),
            )  # fmt: skip
        if listed is not None:
            self._inbox.read(*listed, found[0]["id"] if found else None)
        if found and self._watch is not None:
            self._watch.found()
        return self._commands(found[:count])

    def _commands(self, found: "Sequence[asyncpg.Record]") -> Sequence[InboxRow]:
        """Return the first commands, as many as are read and checked in a part of a turn."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _READ_SECONDS
        commands = []
        for row in found:
            commands.append(self._command(row))
            if loop.time() > until:
                break
        return commands

    def _command(self, row: "asyncpg.Record") -> InboxRow:
        if row["is_answered"]:
            # Stored once more after its decision: its row is deleted, and nothing else.
            return InboxRow(id=row["id"], command_id=UUID(bytes=row["command_id"].bytes), body=None)
        return command_of(row, self._parameters_bytes_max, self._refusal_of)

    async def _fetch(self, name: str, *values: Any) -> "Sequence[asyncpg.Record]":
        async with self._reader.use(call=name):
            prepared: Statement = await self._reader.prepared(name, lambda: statement(name))
            return await prepared.fetch(*values)


async def _show_life(connection: "Connection") -> None:
    """Hold the lock that shows that the leader's session lives; end the sessions of an older leader."""
    with suppress(asyncpg.PostgresError):
        # A savepoint: without it, a refused statement would undo the takeover.
        async with connection.transaction():
            for _ in range(_HOLD_TRIES):
                if await connection.fetchval(statement("hold"), _LEADER):
                    break
                await _end_holders(connection, _LEADER)
                await asyncio.sleep(0.01)
            await _end_holders(connection, _READS)


async def _end_holders(connection: "Connection", lock: int) -> None:
    """End the other sessions that hold a lock of the leader."""
    for row in await connection.fetch(statement("held_by"), lock):
        await connection.execute(f"SELECT pg_terminate_backend({row['pid']})")


class _Newest:
    """The newest turn row as the ledger remembers it; `counts`: its journal or checkpoint is needed."""

    __slots__ = ("counts", "turn")

    def __init__(self, turn: NewestTurn, counts: bool) -> None:
        self.turn = turn
        self.counts = counts


def _turn_of(row: "asyncpg.Record | None") -> NewestTurn | None:
    """Return the turn of a row; the row of a new installation is none."""
    if row is None or not row["epoch"]:
        return None
    return NewestTurn(epoch=row["epoch"], number=row["number"])


def _turn_text(parts: Sequence[Part], forgets: str | None) -> str:
    """Return the statement of a turn that has these parts."""
    stages = {"fence": turn_part("fence"), "previous": turn_part("previous")}
    number = _TURN_PARAMETERS
    for part in parts:
        stages[part.name] = _shifted(turn_part(part.name), number)
        number += part.width
    stages.setdefault("ended", "SELECT WHERE false")
    stages["turn"] = turn_part("turn")
    if forgets is not None:
        stages[forgets] = turn_part(forgets)
    lines = [
        f"{name} AS {'MATERIALIZED ' if name in ('fence', 'previous') else ''}({text})"
        for name, text in stages.items()
    ]
    return "WITH " + ",\n".join(lines) + "\nSELECT count(*) FROM fence"


def _shifted(text: str, offset: int) -> str:
    """Return a part with its parameters behind those of the parts before it."""
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + offset}", text)


async def _ahead_of_loop(connection: "Connection") -> float:
    """Return the seconds by which the database's clock is ahead of the loop's, by its fastest answer."""
    clock, best, ahead = asyncio.get_running_loop().time, math.inf, 0.0
    for _ in range(_CLOCK_QUESTIONS):
        asked_at = clock()
        now = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::double precision")
        took = clock() - asked_at
        if took < best:
            best, ahead = took, now - asked_at - took / 2
    return ahead


async def _load(connection: "Connection", epoch: int, now: float, newest: "asyncpg.Record") -> Loaded:
    low_id = newest["low_id"]
    turns = await connection.fetch(
        statement("journals"), newest["checkpoint_epoch"], newest["checkpoint_number"]
    )
    # The first one is the checkpoint, except in an installation that has none yet.
    checkpoints = [rows.checkpoint_of(row["checkpoint"]) for row in turns if row["checkpoint"] is not None]
    journals = [rows.journal_of(row["journal"]) for row in turns if row["journal"] is not None]
    # The rest is read whole: a plan for few rows, made when a table was empty, would compare all with all.
    await connection.execute(
        "SET LOCAL plan_cache_mode = auto; SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off; "
        "SET LOCAL work_mem = '256MB'"
    )
    singly = await connection.fetch(statement("waiting_singly"), low_id)
    await connection.execute("SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = off")
    packed = await connection.fetch(statement("waiting_packed"), low_id)
    await connection.execute("SET LOCAL enable_sort = on")
    return Loaded(
        epoch=epoch,
        now=now,
        reserved_id=newest["reserved_id"],
        low_id=low_id,
        definitions=[rows.definition_of(row) for row in await connection.fetch(statement("definitions"))],
        schedules=[rows.schedule_of(row) for row in await connection.fetch(statement("schedules"))],
        action_ids={row["ref"]: row["id"] for row in await connection.fetch(statement("action_ids"))},
        waiting=[rows.waiting_of(row) for row in singly],
        packed=[rows.packed_of(row) for row in sorted(packed, key=itemgetter("block"))],
        grants=[rows.grant_of(row) for row in await connection.fetch(statement("grants"))],
        live=[rows.live_of(row) for row in await connection.fetch(statement("live"))],
        workers=[rows.worker_of(row) for row in await connection.fetch(statement("workers"))],
        events=[rows.event_of(row) for row in await connection.fetch(statement("events"), 0, *_EVENTS)],
        newest_event_id=await connection.fetchval(statement("newest_event")),
        early_cancels=[
            rows.early_cancel_of(row) for row in await connection.fetch(statement("early_cancels"))
        ],
        singletons=[rows.singleton_of(row) for row in await connection.fetch(statement("singletons"))],
        checkpoint=checkpoints[-1] if checkpoints else None,
        journals=journals,
        instant_max=newest["at"],
    )
