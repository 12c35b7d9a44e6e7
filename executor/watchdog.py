"""Repairs what a lost message or a dead process left behind; never the normal path (P7, P8).

In: the rows, once per tick. Out: what should have happened and did not. One replica sweeps while the others
receive its notices (`sweep_turns`). Each sweep is a task of its own, so a failing sweep delays no other.
`QueueSweeps` grants, wakes, expires, rolls out limits, recounts, keeps gates and pools correct and moves the
bounds from which sweeps read; `RedeliverySweeps` publishes lost offers and completions again; `ReclaimSweeps`
reclaims the work of lost workers, stops overdue attempts, and checks the database's health and clock;
`EarlyCancels` (`cancellation`) applies cancels that came before their execution; `Pruner` (`retention`)
deletes what is old. Sweeps that change rows do not wait for the broker.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NoReturn, TypeAlias

import asyncpg

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.common.domain.identifiers import QueueId
from turnstile.common.fields import is_pool
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.cancellation import Canceller, EarlyCancels, cancel_of, cancel_of_move
from turnstile.executor.completions import read_completions
from turnstile.executor.database_health import DatabaseClock, DatabaseHealth
from turnstile.executor.dispatcher import Dispatcher
from turnstile.executor.metrics import (
    CANCELS_ENFORCED,
    DRIFT_FOUND,
    DRIFT_REPAIRED,
    LAST_SWEEP,
    RECLAIMS,
    REPAIRS,
    SWEEP_FAILURES,
    SWEEP_ROWS,
)
from turnstile.executor.results import Grants, Move
from turnstile.executor.retention import Pruner
from turnstile.executor.settings import CANCELS_MAX, ExecutorSettings
from turnstile.executor.slot_grants import QueueManager
from turnstile.executor.sql import query
from turnstile.executor.sweep_turns import SweepTurns

logger = logging.getLogger(__name__)

SWEEP_ROWS_MAX: Final = 1000
"""Rows per sweep and tick, so that repairs do not become a load of their own."""
_PRUNING_ROUNDS: Final = 10
_QUEUES_MAX: Final = 20_000
"""Queues searched for idle slots per tick; the next tick continues behind them."""
_RECOUNTED_MAX: Final = 1000
"""Queues recounted per tick: with a tick of a second, 60,000 within a minute."""
_RECOUNT_ROUNDS: Final = 10
"""Rounds from the last queue to the first one again. A recount reads all that waits."""
_SLICES_MAX: Final = 20
"""Slices of one action's queues in one sweep: then the other actions follow."""

Sweep: TypeAlias = Callable[[], Awaitable[int]]


class Watchdog:
    """Runs every sweep each `watchdog_interval`, unless another executor does."""

    def __init__(
        self,
        settings: ExecutorSettings,
        database: Database,
        queue_manager: QueueManager,
        dispatcher: Dispatcher,
        turns: SweepTurns,
    ) -> None:
        self._interval_seconds = settings.watchdog_interval
        self._protocol = queue_manager.protocol
        self._dispatcher = dispatcher
        self._turns = turns
        self._failures = Episodes(logger, "sweep_failed", level=logging.ERROR)
        self._faults = Episodes(logger, "sweep_broken", level=logging.ERROR)
        self._healed = Episodes(logger, "sweep_healed", level=logging.INFO)
        self.queues = QueueSweeps(settings, database, queue_manager, dispatcher)
        self.redelivery = RedeliverySweeps(settings, database, queue_manager, dispatcher)
        self.reclaims = ReclaimSweeps(settings, database, queue_manager, dispatcher)
        self.early_cancels = EarlyCancels(
            database, Canceller(queue_manager), dispatcher, rows_max=SWEEP_ROWS_MAX
        )
        self.pruner = Pruner(database, settings)

    async def run(self) -> NoReturn:
        """Sweep until cancelled."""
        # These sweeps repeat while they are full, so that thousands of due rows take one tick.
        eager: tuple[Sweep, ...] = (
            self.queues.grant_idle_slots,
            self.queues.advance_gates,
            self.queues.roll_out_limits,
            self.queues.wake_due,
            self.queues.expire_due,
        )
        paced: tuple[Sweep, ...] = (
            self.redelivery.repeat_offers,
            self.redelivery.repeat_completions,
            self.reclaims.reclaim_lost,
            self.reclaims.return_to_present,
            self.reclaims.repeat_stops,
            self.reclaims.stop_overdue,
            self.early_cancels.cancel_early,
            self.queues.refresh_pools,
            self.queues.tidy_gates,
            self.queues.move_slot_window,
            self.queues.move_due_window,
        )
        pruning: tuple[Sweep, ...] = (
            self.queues.repair_gates,
            self.pruner.prune_executions,
            self.pruner.delete_idle_queues,
            self.pruner.prune_workers,
            self.pruner.prune_pools,
            self.pruner.prune_audit_log,
            self.pruner.prune_submission_outcomes,
            self.pruner.clean_webhooks,
            self.pruner.prune_dead_letters,
        )
        # What these note is known to their own process only.
        own: tuple[tuple[Sweep, float], ...] = (
            (self.queues.prepare_pools, self._interval_seconds),
            (self.reclaims.check_database, min(self._interval_seconds, self.reclaims.check_seconds)),
        )
        self._turns.expect(
            [sweep.__name__ for sweep in (*eager, *paced)],
            [sweep.__name__ for sweep in (*pruning, self.queues.repair_counters)],
        )
        async with asyncio.TaskGroup() as tasks:
            for sweep in eager:
                tasks.create_task(self._in_rounds(sweep, full_at=SWEEP_ROWS_MAX), name=sweep.__name__)
            for sweep in paced:
                tasks.create_task(self._in_rounds(sweep), name=sweep.__name__)
            for sweep in pruning:
                tasks.create_task(self._in_rounds(sweep, every=_PRUNING_ROUNDS), name=sweep.__name__)
            for sweep, pause_seconds in own:
                tasks.create_task(self._repeat(sweep, pause_seconds), name=sweep.__name__)
            tasks.create_task(self._recount(), name="repair_counters")
            tasks.create_task(self._turns.run(), name="sweep-turns")
        raise AssertionError("sweeps end by cancellation only")

    async def _in_rounds(self, sweep: Sweep, *, full_at: float = math.inf, every: int = 1) -> NoReturn:
        number = 1 - every
        while True:
            number = await self._turns.reach(number + every)
            while (healed := await self._attempt(sweep)) is not None and healed >= full_at:
                pass
            if healed is None:
                self._turns.failed(sweep.__name__)
            elif self._turns.succeeded(sweep.__name__, number):
                await self._attempt(self.announce_round)

    async def announce_round(self) -> int:
        """Let the other executors stand by, unless the broker may be out of reach. Counts as no repair."""
        reached(CrashPoint.ROUND_COMPLETED)
        if self._dispatcher.connected and self.redelivery.saw_all_pools:
            await self._protocol.announce_round(self._turns.name)
        return 0

    async def _recount(self) -> NoReturn:
        next_number = 1
        while True:
            number = await self._turns.reach(next_number)
            if await self._attempt(self.queues.repair_counters) is None:
                self._turns.failed("repair_counters")
            next_number = number + (1 if self.queues.recounted_up_to else _RECOUNT_ROUNDS)

    async def _repeat(self, sweep: Sweep, pause_seconds: float) -> NoReturn:
        while True:
            await self._attempt(sweep)
            await asyncio.sleep(pause_seconds)

    async def _attempt(self, sweep: Sweep) -> int | None:
        """Return how many rows were healed, or None after a failure."""
        name = sweep.__name__
        try:
            healed = await sweep()
        except Unavailable as error:
            SWEEP_FAILURES.add(name)
            logger.debug("sweep_postponed", extra={"sweep": name, "reason": str(error)})
        except asyncpg.PostgresError as error:
            SWEEP_FAILURES.add(name)
            self._failures.failed(name, sweep=name, reason=str(error))
        except Exception as error:  # noqa: BLE001  (logged with its traceback)
            # A fault in one row stops neither the other sweeps nor the service (P7).
            SWEEP_FAILURES.add(name)
            self._faults.broke(name, error, sweep=name)
        else:
            self._failures.works(name, sweep=name)
            self._faults.works(name, sweep=name)
            LAST_SWEEP.set(time.time(), name)
            if healed:
                SWEEP_ROWS.add(name, count=healed)
                self._healed.failed_times(name, healed, sweep=name, rows=healed)
            else:
                self._healed.works(name, sweep=name)
            return healed
        return None


class _Sweeps:
    def __init__(
        self,
        settings: ExecutorSettings,
        database: Database,
        queue_manager: QueueManager,
        dispatcher: Dispatcher,
    ) -> None:
        self._settings = settings
        self._database = database
        self._protocol = queue_manager.protocol
        self._queue_manager = queue_manager
        self._dispatcher = dispatcher

    async def _publish_completions(
        self, execution_ids: Sequence[int], *, result_bytes_max: int | None = None
    ) -> None:
        if result_bytes_max is None:
            result_bytes_max = self._settings.event_result_max_bytes
        messages = await read_completions(self._database, execution_ids, result_bytes_max=result_bytes_max)
        await self._dispatcher.publish(messages)


class QueueSweeps(_Sweeps):
    """Grants free slots, rolls out limits, wakes, expires, recounts, and declares the queues of pools.

    Also moves the bounds from which all sweeps read.
    """

    _granted_up_to = QueueId(0)
    recounted_up_to = QueueId(0)
    """Where the next recount continues; 0: from the first queue."""
    drift_found = 0

    async def grant_idle_slots(self) -> int:
        """Grant free slots of queues that have waiting executions."""
        idle, self._granted_up_to = await self._protocol.grantable_queues(self._granted_up_to, _QUEUES_MAX)
        granted = 0
        for start in range(0, len(idle), SWEEP_ROWS_MAX):
            grants = await self._queue_manager.grant(idle[start : start + SWEEP_ROWS_MAX])
            reached(CrashPoint.SWEPT, "grant_idle_slots")
            REPAIRS.add("slot_granted", count=len(grants.granted))
            granted += len(grants.granted)
            if not self._dispatch(grants):
                # The broker is down: a long queue is granted at the pace of the ticks.
                return 0
        return granted

    async def advance_gates(self) -> int:
        """Let pass what can pass a gate; first return executions from closed gates to their queues."""
        granted = 0
        for _ in range(_SLICES_MAX):
            grants, remaining = await self._protocol.advance_gates(SWEEP_ROWS_MAX)
            if grants.granted or remaining:
                reached(CrashPoint.SWEPT, "advance_gates")
            REPAIRS.add("gate_passed", count=len(grants.granted))
            granted += len(grants.granted)
            if not self._dispatch(grants) or not remaining:
                break
        return granted

    async def refresh_pools(self) -> int:
        """Count the capacity of the pools again, and grant what it allows.

        A count is wrong after another session held a pool's row during a decision, or by a fault.
        """
        refreshed = await self._protocol.refresh_pools(None, {}, recounts=True)
        if refreshed.repaired or refreshed.more_queue_ids:
            reached(CrashPoint.SWEPT, "refresh_pools")
        if refreshed.repaired:
            logger.warning("pools_recounted", extra={"pools": refreshed.repaired})
        if refreshed.more_queue_ids:
            grants = await self._queue_manager.grant(refreshed.more_queue_ids)
            REPAIRS.add("slot_granted", count=len(grants.granted))
            self._dispatch(grants)
        return refreshed.repaired

    async def tidy_gates(self) -> int:
        """Delete what fair order and rates no longer need. Counts as no repair."""
        await self._protocol.tidy_gates(SWEEP_ROWS_MAX)
        return 0

    async def roll_out_limits(self) -> int:
        """Bring changed limits and pauses to the queues that do not have them yet, slice by slice."""
        healed = 0
        for action_id in await self._protocol.rollouts_due(SWEEP_ROWS_MAX):
            for _ in range(_SLICES_MAX):
                looked_at, changed, grants = await self._protocol.roll_out(action_id, SWEEP_ROWS_MAX)
                reached(CrashPoint.SWEPT, "roll_out_limits")
                await self._dispatcher.dispatch(grants)
                healed += changed
                if looked_at < SWEEP_ROWS_MAX:
                    break
        return healed

    async def wake_due(self) -> int:
        """Queue delayed executions that are due."""
        woken, grants = await self._protocol.wake_due(SWEEP_ROWS_MAX)
        if woken:
            reached(CrashPoint.SWEPT, "wake_due")
        self._dispatcher.announce_moves(woken)
        # Also where none woke: the same statement may have granted to executions that waited.
        self._dispatch(grants)
        return len(woken)

    async def expire_due(self) -> int:
        """End executions that did not start within their ttl."""
        moves = await self._protocol.expire_due(SWEEP_ROWS_MAX)
        if not moves:
            return 0
        reached(CrashPoint.SWEPT, "expire_due")
        self._dispatcher.announce_moves(moves)
        ids = [move.execution_id for move in moves]
        self._dispatcher.in_background(self._publish_completions(ids, result_bytes_max=0), count=len(ids))
        return len(moves)

    async def repair_counters(self) -> int:
        """Recount the next queues, and repair counters that differ from their rows (P10).

        Counters change only in the transaction that changes their rows, so drift is a fault: it is logged as
        an error and counted.
        """
        drifted, self.recounted_up_to = await self._protocol.drifted_queues(
            self.recounted_up_to, _RECOUNTED_MAX
        )
        if not drifted:
            return 0
        DRIFT_FOUND.add(count=len(drifted))
        repaired, grants = await self._protocol.repair_queues(drifted)
        reached(CrashPoint.SWEPT, "repair_counters")
        for queue in repaired:
            self.drift_found += 1
            DRIFT_REPAIRED.add()
            logger.error("counters_repaired", extra=queue)
        self._dispatch(grants)
        return len(repaired)

    async def repair_gates(self) -> int:
        """Recount the gates, and repair counters that differ from their rows: a fault, as for queues."""
        repaired = await self._protocol.repair_gates()
        if repaired:
            reached(CrashPoint.SWEPT, "repair_gates")
        for gate in repaired:
            self.drift_found += 1
            DRIFT_REPAIRED.add()
            logger.error("gate_counters_repaired", extra=dict(gate))
        return len(repaired)

    async def move_slot_window(self) -> int:
        """Let the sweeps start behind what was deleted long ago (P15). Counts as no repair."""
        if await self._protocol.move_slot_window():
            reached(CrashPoint.SWEPT, "move_slot_window")
        return 0

    async def move_due_window(self) -> int:
        """Do the same for delays and deadlines."""
        if await self._protocol.move_due_window():
            reached(CrashPoint.SWEPT, "move_due_window")
        return 0

    async def prepare_pools(self) -> int:
        """Declare the queues of live workers' pools, and note their workers.

        A worker whose account may not declare queues waits for this, not for the first offer (P7). Counts as
        no repair.
        """
        # A worker may register any text as a pool: an invalid one must not affect the others.
        rows = [row for row in await self._database.fetch(query("pools")) if is_pool(row["pool"])]
        self._dispatcher.packing.note_workers(
            {row["pool"]: (row["workers"], row["offers_per_message"]) for row in rows}
        )
        await self._dispatcher.declare_pools(row["pool"] for row in rows)
        return 0

    def _dispatch(self, grants: Grants) -> bool:
        return self._dispatcher.dispatch_in_background(grants)


class RedeliverySweeps(_Sweeps):
    """Publishes `execution.scheduled` and `execution.completed` again, from the rows (P4, P7).

    Claims are fenced and settling is idempotent, so a copy is harmless; offers that the broker still holds
    are not copied.
    """

    saw_all_pools = True
    """Whether the broker answered for each pool with due offers at the last sweep."""

    async def repeat_offers(self) -> int:
        """Offer again what was granted and not claimed, unless the broker still holds the offer."""
        timeout_seconds = self._settings.dispatch_timeout
        due = await self._protocol.due_pools(timeout_seconds)
        ready = await self._dispatcher.ready_offers(row["pool"] for row in due)
        seen = [row for row in due if row["pool"] in ready]
        self.saw_all_pools = len(seen) == len(due)
        if not seen:
            return 0
        counts = [ready[row["pool"]] for row in seen]
        held = [ready[row["pool"]] * self._dispatcher.packing.offers_max(row["pool"]) for row in seen]
        grants = await self._protocol.missing_offers(timeout_seconds, seen, counts, SWEEP_ROWS_MAX, held=held)
        if grants:
            reached(CrashPoint.SWEPT, "repeat_offers")
            # A withheld offer is published for the first time: no message was lost.
            REPAIRS.add("offer_repeated", count=sum(grant.waited_seconds is None for grant in grants))
            await self._dispatcher.dispatch(Grants(granted=grants), alone=True)
        return len(grants)

    async def repeat_completions(self) -> int:
        """Publish again the completions of executions that ended and were not settled."""
        ids = await self._protocol.due_completions(self._settings.settle_timeout, SWEEP_ROWS_MAX)
        if ids:
            reached(CrashPoint.SWEPT, "repeat_completions")
            REPAIRS.add("completion_repeated", count=len(ids))
            await self._publish_completions(ids)
        return len(ids)


class ReclaimSweeps(_Sweeps):
    """Reclaims the work of lost workers, and stops overdue attempts (P6, P7).

    The worker is sent a cancel message before its work is offered again: it may only have lost the database.
    Reclaims require a healthy database and are decided as of an instant when it was healthy. They do not wait
    for the broker: while it is down, live workers renew their leases in the database.
    """

    def __init__(
        self,
        settings: ExecutorSettings,
        database: Database,
        queue_manager: QueueManager,
        dispatcher: Dispatcher,
    ) -> None:
        super().__init__(settings, database, queue_manager, dispatcher)
        self._health = DatabaseHealth(settings.lease_duration)
        self._clock = DatabaseClock()
        self._returning_until = time.monotonic() + settings.lease_duration
        self._was_set_back = False
        self._check_lock = asyncio.Lock()
        self.check_seconds = self._health.check_seconds
        """Longest interval between two calls of `check_database`."""

    async def check_database(self) -> int:
        """Check the database's health and clock. Counts as no repair."""
        # One at a time: responses out of order would look like a clock that was set back.
        async with self._check_lock:
            sent = time.monotonic()
            try:
                at = await self._protocol.clock()
            except (Unavailable, asyncpg.PostgresError):
                self._health.lost()
                raise
            self._health.seen(at)
            self._note_jump(self._clock.seen(sent, at, time.monotonic()))
        return 0

    def _note_jump(self, jump_seconds: float) -> None:
        if jump_seconds == 0:
            return
        logger.warning("database_clock_jumped", extra={"seconds": round(jump_seconds, 3)})
        if jump_seconds < 0:
            self._was_set_back = True
            self._returning_until = time.monotonic() + self._settings.lease_duration

    async def return_to_present(self) -> int:
        """Repair times that lie in the future because the database's clock was set back.

        Runs for one lease after a jump and after the start, because a jump before the start is not seen.
        """
        if time.monotonic() > self._returning_until:
            return 0
        returned = await self._protocol.clamp_future_instants(self._was_set_back)
        # A repaired row proves a jump: the next call also checks the delays before retries.
        self._was_set_back = returned > 0 and not self._was_set_back
        return returned

    async def reclaim_lost(self) -> int:
        """Reclaim the work of lost workers."""
        # An older check is valid too, but would delay the reclaim by its age.
        await self.check_database()
        as_of = self._health.healthy_for_a_lease()
        if as_of is None:
            return 0
        requeued, ended, grants = await self._protocol.reclaim(SWEEP_ROWS_MAX, as_of)
        if not (requeued or ended):
            return 0
        reached(CrashPoint.SWEPT, "reclaim_lost")
        for move in (*requeued, *ended):
            RECLAIMS.add(move.status)
        self._dispatcher.announce_moves([*requeued, *ended])
        self._dispatcher.in_background(
            self._publish_reclaimed(requeued, ended, grants),
            count=len(requeued) + len(ended) * 2 + len(grants.granted),
        )
        return len(requeued) + len(ended)

    async def repeat_stops(self) -> int:
        """Publish cancel messages of reclaimed attempts that no executor has published."""
        cancels = await self._protocol.due_cancels(self._settings.stop_timeout, SWEEP_ROWS_MAX)
        if cancels:
            REPAIRS.add("cancel_repeated", count=len(cancels))
            await self._publish_cancels(cancels)
        return len(cancels)

    async def stop_overdue(self) -> int:
        """Cancel overdue attempts, and end those that their worker does not stop."""
        cancelled, ended = await self._protocol.stop_overdue(
            self._settings.stop_timeout, CANCELS_MAX, SWEEP_ROWS_MAX
        )
        if not (cancelled or ended):
            return 0
        reached(CrashPoint.SWEPT, "stop_overdue")
        for move in ended:
            CANCELS_ENFORCED.add(move.status)
            logger.warning(
                "stop_enforced",
                extra={
                    "execution_id": move.execution_id,
                    "attempt": move.attempt,
                    "worker_id": move.worker_id,
                    "status": str(move.status),
                },
            )
        self._dispatcher.announce_moves(ended)
        self._dispatcher.in_background(
            self._publish_overdue(cancelled, ended), count=len(cancelled) + len(ended) * 2
        )
        return len(cancelled) + len(ended)

    async def _publish_reclaimed(
        self, requeued: Sequence[Move], ended: Sequence[Move], grants: Grants
    ) -> None:
        # In this order: a worker that lost its lease may still run what is offered next.
        await self._publish_cancels(
            [(m.execution_id, m.attempt, m.worker_id or "") for m in (*requeued, *ended)]
        )
        await self._publish_ended(ended)
        await self._dispatcher.dispatch(grants)

    async def _publish_overdue(self, cancelled: Iterable[Move], ended: Sequence[Move]) -> None:
        await self._dispatcher.publish([cancel_of_move(move) for move in (*cancelled, *ended)])
        await self._publish_ended(ended)

    async def _publish_cancels(self, cancels: Sequence[tuple[int, int, str]]) -> None:
        messages = [cancel_of(i, attempt, worker_id=worker) for i, attempt, worker in cancels]
        await self._dispatcher.publish(messages)
        await self._protocol.cancels_published(cancels)

    async def _publish_ended(self, ended: Sequence[Move]) -> None:
        if ended:
            await self._publish_completions([move.execution_id for move in ended])
