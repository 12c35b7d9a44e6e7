"""The real statements and the model of gates in lock-step: each operation runs on both, then a comparison.

In: a configuration, and operations with a number that decides about their details. Out: nothing, or an
AssertionError that says what differs. Everything happens in one transaction, which is rolled back.

The statements differ from the model in four ways, all intended. A request that needs more units than the
capacity of a resource is refused; the model lets it wait. An execution that ends while it waits at a
later gate keeps its units until its completion is settled; the model has it as granted until then.
Executions leave a closed route one gate after another (`advance_gates`), and others pass in between; the
result is not compared with the model then, but has to be a state in which nothing can pass and no closed
execution holds anything. The tables have no gate for workers: the model has more capacity than executions.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from tests.proof.gates.definitions import GRANTED, Action, Pool, System, Worker, queue_name
from tests.proof.gates.explorer import Configuration
from tests.proof.gates.model import Execution, Gates, State, Step, Table
from tests.support.gates import put_resource
from tests.support.protocol import CREATE_QUEUES, Connection, Protocol
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status
from turnstile.worker.protocol import Offer, Report

TAG_SCALE: Final = 720_720
SECONDS: Final = 1000
"""One unit of the model's time, in seconds of the database: longer than any run."""
CLOSED: Final = -(2**63)
"""`gate.returning_from` of a gate that has just closed."""

_SEEN: Final = """
SELECT json_build_object(
    'waiting', (SELECT json_agg(json_build_array(
                    turnstile.id_of_place(w.place), turnstile.priority_of_place(w.place), w.place, w.line_id,
                    f.gate_id, w.queue_id, w.gate_ids, w.gate_units))
                FROM waiting w LEFT JOIN gate_flow f ON f.id = w.line_id),
    'held', (SELECT json_agg(json_build_array(
                 h.execution_id, h.queue_id, h.gate_ids, h.gate_units, h.has_slot))
             FROM (SELECT execution_id, queue_id, gate_ids, gate_units, true AS has_slot FROM slot
                   UNION ALL
                   SELECT execution_id, queue_id, gate_ids, gate_units, false FROM unpublished_completion
                   WHERE gate_ids IS NOT NULL) h),
    'queues', (SELECT json_agg(q) FROM turnstile.current_queue q),
    'gates', (SELECT json_agg(g) FROM turnstile.current_gate g),
    'turns', (SELECT json_agg(json_build_array(
                  t.gate_id, t.line_id, f.flow_id, t.priority, t.start_tag, t.place))
              FROM flow_turn t JOIN gate_flow f ON f.id = t.line_id),
    'old_versions', (SELECT count(*) FROM gate_state) - (SELECT count(*) FROM gate))
"""


def for_statements(configuration: Configuration) -> Configuration:
    """Return the configuration with workers for everything, and only rate-limited actions at one pool."""
    system = configuration.system
    rates = {name for name, action in system.actions.items() if action.rate is not None}
    rates |= {
        name
        for name, action in system.actions.items()
        if any(system.resources[used].rate is not None for used in action.uses)
    }
    compiled = System(
        actions=tuple(
            replace(a, pool="default" if a.name in rates else "free") for a in system.actions.values()
        ),
        resources=tuple(system.resources.values()),
        pools=(Pool(name="default"), Pool(name="free")),
        workers=(Worker(name="w", concurrency=10**6, pools=("default", "free")),),
    )
    compiled.tag_scale = TAG_SCALE
    return replace(configuration, system=compiled, restless=())


@dataclass(slots=True)
class Live:
    """What a test knows about an execution beside the model."""

    execution_id: int
    attempt: int = 0
    ended: Status | None = None
    """It has ended and holds its units until its settle."""
    delayed: bool = False


class Twin:
    """Runs operations on a database and on the model."""

    def __init__(self, protocol: Protocol, configuration: Configuration) -> None:
        self.protocol = protocol
        self.connection = protocol.connection
        self.configuration = configuration
        self.system = copy(configuration.system)
        self.system.routes = dict(self.system.routes)
        self.gates = Gates(self.system)
        self.state = self.gates.initial()
        self.live: dict[int, Live] = {}
        """By ticket, until the settle."""
        self.tickets: dict[int, int] = {}
        self.delayed: dict[int, Execution] = {}
        """Tickets of executions that wait for a retry."""
        self.granted: list[int] = []
        self.more: set[int] = set()
        self.action_ids: dict[str, int] = {}
        self.queue_ids: dict[int, int] = {}
        """By gate of the model."""
        self.gate_ids: dict[int, int] = {}
        self.model_gates: dict[int, int] = {}
        """By id in the database, the gates of the model."""
        self.workers = 0
        self.unused: set[tuple[str, str]] = set()
        """Actions, and resources that they do not use now."""

    # Definitions.

    async def define(self) -> None:
        """Create the actions, resources and queues."""
        for resource in self.system.resources.values():
            rate = resource.rate
            await put_resource(
                self.protocol.database,
                resource.name,
                resource.capacity,
                rank=resource.rank,
                order=resource.order,
                rate=rate and {"starts": rate.starts, "per": rate.per * SECONDS},
            )
        for action in self.system.actions.values():
            await self._define_action(action)
        await self.connection.execute("SELECT turnstile.reroute($1)", list(self.action_ids.values()))
        rows = await self.connection.fetch("SELECT * FROM gate")
        names = {action_id: name for name, action_id in self.action_ids.items()}
        for row in rows:
            match row["kind"]:
                case "action":
                    name = f"total {names[row['action_id']]}"
                case "pool" if row["name"] == "free":
                    # Its turns count only while something waits for a worker slot.
                    continue
                case "pool":
                    name = f"pool {row['name']}"
                case _:
                    name = row["name"]
            if name in self.system.number:
                self.gate_ids[self.system.number[name]] = row["id"]
                self.model_gates[row["id"]] = self.system.number[name]
        self.model_gates |= {queue_id: gate for gate, queue_id in self.queue_ids.items()}

    async def _define_action(self, action: Action) -> None:
        await self.protocol.put(
            action.name, max_concurrent=action.limit, submitter_keys=True, max_reclaims=1000, pool=action.pool
        )
        rate = action.rate
        action_id = await self.connection.fetchval(
            "UPDATE action SET max_concurrent_total = $2, fair = $3, rate_starts = $4, rate_per_seconds = $5,"
            " uses = $6 WHERE ref = $1 RETURNING id",
            action.name,
            action.total,
            action.order == "fair",
            rate and rate.starts,
            rate and float(rate.per * SECONDS),
            self.uses(action.name, action.uses),
        )
        self.action_ids[action.name] = action_id
        for key in action.keys:
            limit = action.key_limits.get(key, action.limit)
            await self.connection.execute(
                CREATE_QUEUES.format(
                    f"SELECT {action_id}, '{key}', {'NULL' if limit is None else limit}::integer, false"
                )
            )
            self.queue_ids[self.system.number[queue_name(action.name, key)]] = await self.connection.fetchval(
                "SELECT id FROM action_queue WHERE action_id = $1 AND concurrency_key = $2", action_id, key
            )
            if key in action.key_limits or key in action.weights:
                await self.connection.execute(
                    "INSERT INTO key_override (action_id, concurrency_key, has_limit, max_concurrent, weight)"
                    " VALUES ($1, $2, $3, $4, $5)",
                    action_id,
                    key,
                    key in action.key_limits,
                    action.key_limits.get(key),
                    action.weights.get(key),
                )

    def uses(self, action: str, uses: Any) -> str:
        weights = {name: dict(resource.weights) for name, resource in self.system.resources.items()}
        return json.dumps(
            [
                {"resource": name, "units": units, "weight": weights[name].get(action, 1)}
                for name, units in sorted(uses.items())
            ]
        )

    # What is chosen from.

    def chosen(self, tickets: Iterable[int], n: int, most: int = 1) -> list[int]:
        """Return up to `most` of these tickets, chosen by a number."""
        pool, found = sorted(tickets), []
        for _ in range(1 + (n // 7) % most):
            if pool:
                found.append(pool.pop(n % len(pool)))
                n = n // 3 + 1
        return found

    def running(self) -> list[int]:
        return [
            e.ticket for e in self.state.executions if e.gate == GRANTED and self.live[e.ticket].ended is None
        ]

    def waiting(self) -> list[int]:
        return [e.ticket for e in self.state.executions if e.gate != GRANTED]

    def ended(self) -> list[int]:
        return [ticket for ticket, live in self.live.items() if live.ended is not None]

    # Operations: each takes a number that decides about the details.

    async def admit(self, n: int) -> None:
        """One to four requests arrive together."""
        requests = self.configuration.requests
        batch = [requests[(n // 5**i) % len(requests)] for i in range(1 + n % 4)]
        row = await self.admitted(self.protocol, batch)
        executions = list(self.state.executions)
        for (action, key, priority), answer in zip(batch, row["admitted"], strict=True):
            if self._is_too_heavy(action, key):
                assert answer["code"] == "invalid_parameters", answer
                continue
            assert answer["code"] is None, answer
            ticket = self.state.next_ticket
            gate = self.system.routes[action, key][0].gate
            executions.append(Execution(ticket, action, key, priority, gate))
            self.live[ticket] = Live(answer["execution_id"])
            self.tickets[answer["execution_id"]] = ticket
            self.state = self.state._replace(next_ticket=ticket + 1)
        self._note(row)
        await self._grant_more()
        await self._compare(self.gates.decide(self.state._replace(executions=tuple(executions))))

    async def settle(self, n: int) -> None:
        """Up to three running executions end, and are settled in one batch."""
        tickets = self.chosen(self.running(), n, 3)
        await self._finish(tickets)
        await self._settle(tickets)

    async def finish(self, n: int) -> None:
        """A running execution ends; its completion arrives later."""
        await self._finish(self.chosen(self.running(), n))
        await self._compare(Step(self.state, (), ()))

    async def settle_ended(self, n: int) -> None:
        """Late completions arrive."""
        await self._settle(self.chosen(self.ended(), n, 4))

    async def retry(self, n: int) -> None:
        """An attempt fails and waits for its retry."""
        for ticket in self.chosen(self.running(), n):
            await self._finish([ticket], retry=True)
            execution = self._execution(ticket)
            self.delayed[ticket] = execution
            await self._settle([ticket], keep=True)

    async def wake(self, n: int) -> None:
        """Retries are due: the executions enter their queues with their old tickets."""
        tickets = self.chosen(self.delayed, n, 2)
        ids = [self.live[ticket].execution_id for ticket in tickets]
        await self.connection.execute(
            "UPDATE execution SET run_at = clock_timestamp() - interval '1 s' WHERE id = ANY ($1)", ids
        )
        await self.connection.execute(
            "UPDATE delayed SET due_at = (SELECT first_at FROM turnstile.due_bound)"
            " WHERE execution_id = ANY ($1)",
            ids,
        )
        self._note(await self.protocol.row("SELECT * FROM turnstile.wake_due(1000)"))
        await self._grant_more()
        woken = [self.gates._restarted(self.delayed.pop(ticket)) for ticket in tickets]
        await self._compare(
            self.gates.decide(self.state._replace(executions=tuple(sorted([*self.state.executions, *woken]))))
        )

    async def cancel(self, n: int) -> None:
        """Executions that have not started are cancelled; the completions arrive at once, or later."""
        tickets = self.chosen([*self.waiting(), *self.running()], n, 2)
        await self.protocol.cancel(*self._ids(tickets))
        await self._end(tickets, Status.CANCELLED, settle_now=n % 3 > 0)

    async def expire(self, n: int) -> None:
        """As a cancel, by the time to live."""
        tickets = self.chosen(self.waiting(), n, 2)
        ids = self._ids(tickets)
        await self.connection.execute(
            "UPDATE execution SET expires_at = created_at + interval '1 us' WHERE id = ANY ($1)", ids
        )
        await self.connection.execute(
            "UPDATE expiring SET expires_at = (SELECT first_at FROM turnstile.due_bound)"
            " WHERE execution_id = ANY ($1)",
            ids,
        )
        moves = await self.protocol.expire_due()
        assert sorted(move.execution_id for move in moves) == sorted(ids)
        await self._end(tickets, Status.EXPIRED, settle_now=n % 3 > 0)

    async def reclaim(self, n: int) -> None:
        """The worker of running executions is lost."""
        tickets = self.chosen(self.running(), n, 3)
        worker = await self._claim(tickets)
        await self.protocol.lose_lease(worker)
        row = await self.protocol.row("SELECT * FROM turnstile.reclaim(1000)")
        assert len(row["returned"] or ()) == len(tickets)
        self._note(row)
        await self._grant_more()
        await self._compare(self.gates.reclaim(self.state, *tickets))

    async def hand_back(self, n: int) -> None:
        """A worker drains: its executions return to their queues, and it reports the free slots."""
        tickets = self.chosen(self.running(), n, 2)
        worker = await self._claim(tickets)
        offers = self._offers(tickets)
        assert sorted(await self.protocol.record(worker).hand_back(offers)) == sorted(self._ids(tickets))
        self._note(await self._settled([(offer.execution_id, offer.attempt, None) for offer in offers]))
        await self._grant_more()
        if self.unused:
            # What it held at a gate that its action does not use any more is found by the watchdog.
            await self._advance()
        await self._compare(self.gates.reclaim(self.state, *tickets))

    async def tick(self, n: int) -> None:
        """Time passes: rates have starts again."""
        del n
        await self.connection.execute(
            f"UPDATE rate_start SET granted_at = granted_at - interval '{SECONDS} s'"
        )
        self._note(await self.protocol.row("SELECT * FROM turnstile.pass_rates()"))
        await self._grant_more()
        await self._compare(self.gates.tick(self.state))

    async def tidy(self, n: int) -> None:
        """The watchdog deletes what no decision needs any more, and finds nothing to grant or to repair."""
        await self.connection.execute("SELECT turnstile.tidy_gates($1)", 1 + n % 5)
        row = await self.protocol.row("SELECT * FROM turnstile.advance_gates(1000)")
        assert not row["granted"], "the watchdog found something that could pass"
        assert not row["remaining"], "the watchdog found something that had to return"
        assert not await self.protocol.grantable_queues(), "the watchdog found a free slot"
        assert not await self.protocol.column(
            "SELECT queue_id FROM turnstile.recounted_queues($1)"
            " WHERE depth <> waiting OR held <> slots OR head_id > first_id",
            list(self.queue_ids.values()),
        ), "the watchdog counted a queue differently"
        await self._compare(Step(self.state, (), ()))

    async def pause(self, n: int) -> None:
        """A resource or an action is paused, or resumed."""
        names = sorted(
            {name for pausable in self.configuration.pausable for name in pausable} | set(self.system.actions)
        )
        name = names[n % len(names)]
        gates = (
            [self.system.number[name]]
            if name in self.system.resources
            else [
                stop.gate
                for queue_key, route in self.system.routes.items()
                if queue_key[0] == name.split("/")[0]
                for stop in route[:1]
            ]
        )
        is_paused = gates[0] in self.state.paused
        paused = self.state.paused - set(gates) if is_paused else self.state.paused | set(gates)
        if name in self.system.resources:
            await self.connection.execute(
                "UPDATE gate SET paused = $2,"
                " returning_from = CASE WHEN $2 THEN $3 ELSE returning_from END WHERE id = $1",
                self.gate_ids[gates[0]],
                not is_paused,
                CLOSED,
            )
        else:
            await self._roll_out(name.split("/")[0], "paused = $2", not is_paused)
        await self._changed(self.state._replace(paused=paused), gates, opens=is_paused)

    async def change_capacity(self, n: int) -> None:
        """A limit changes."""
        names = list(self.configuration.capacities)
        if not names:
            return
        name = names[n % len(names)]
        gate, values = self.system.number[name], [0, 1, 2, 3, 4, None]
        value = values[(n // 11) % len(values)]
        if value is None and self.system.gates[gate].kind == "total":
            value = 5
        capacities = list(self.state.capacities)
        before, capacities[gate] = capacities[gate], value
        match self.system.gates[gate].kind:
            case "queue":
                await self._limit_queue(gate, value)
            case "total":
                await self.connection.execute(
                    "UPDATE action SET max_concurrent_total = $2 WHERE ref = $1",
                    name.removeprefix("total "),
                    value,
                )
                await self._reroute(name.removeprefix("total "))
            case _:
                lowered = value is not None and (before is None or value < before)
                await self.connection.execute(
                    "UPDATE gate SET capacity = $2,"
                    " returning_from = CASE WHEN $3 THEN $4 ELSE returning_from END"
                    " WHERE id = $1",
                    self.gate_ids[gate],
                    value,
                    lowered,
                    CLOSED,
                )
        opens = before is not None and (value is None or value > before)
        await self._changed(self.state._replace(capacities=tuple(capacities)), [gate], opens=opens)

    async def redefine(self, n: int) -> None:
        """An action stops using a resource, or uses it again."""
        uses = [
            (a.name, used)
            for a in self.system.actions.values()
            for used in a.uses
            if self.system.resources[used].rate is None
        ]
        if not uses:
            return
        name, changed = uses[n % len(uses)]
        action = self.system.actions[name]
        self.unused ^= {(name, changed)}
        for key in action.keys:
            route = self.configuration.system.routes[name, key]
            unused = {self.system.number[used] for ref, used in self.unused if ref == name}
            self.system.routes[name, key] = tuple(stop for stop in route if stop.gate not in unused)
        left = {used: units for used, units in action.uses.items() if (name, used) not in self.unused}
        await self.connection.execute(
            "UPDATE action SET uses = $2 WHERE ref = $1", name, self.uses(name, left)
        )
        await self._reroute(name)
        await self._advance()
        self.more |= {self.queue_ids[self.system.number[queue_name(name, key)]] for key in action.keys}
        await self._grant_more()
        await self._advance()
        await self._resume_from(self.state, {e.ticket: e for e in self.state.executions})

    async def cancel_beside_a_settle(self, n: int) -> None:
        """Something else is settled between a cancel and the completion of the cancelled."""
        cancelled = self.chosen(self.waiting(), n, 2)
        settled = self.chosen(self.running(), n, 2)
        await self._finish(settled)
        await self.protocol.cancel(*self._ids(cancelled))
        messages = [
            (live.execution_id, live.attempt, Status.COMPLETED)
            for live in (self.live[ticket] for ticket in settled)
        ]
        self._note(await self._settled(messages))
        await self._grant_more()
        self._note(
            await self._settled(
                [
                    (live.execution_id, live.attempt, Status.CANCELLED)
                    for live in (self.live[ticket] for ticket in cancelled)
                ]
            )
        )
        await self._grant_more()
        await self._advance()
        gone = {*settled, *cancelled}
        for ticket in gone:
            del self.tickets[self.live.pop(ticket).execution_id]
        left = tuple(e for e in self.state.executions if e.ticket not in gone)
        await self._resume_from(self.state._replace(executions=left), {e.ticket: e for e in left})

    # Steps of operations.

    async def admitted(self, protocol: Protocol, batch: Sequence[tuple[str, str, int]]) -> asyncpg.Record:
        """Admit requests: actions, keys, priorities."""
        return await protocol.row(
            "SELECT * FROM turnstile.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12,"
            " in_priorities => $13)",
            [action for action, _, _ in batch],
            ["{}"] * len(batch),
            [key or None for _, key, _ in batch],
            [None] * len(batch),
            [None] * len(batch),
            ["00000000-0000-0000-0000-000000000000"] * len(batch),
            [None] * len(batch),
            [None] * len(batch),
            [3600.0] * len(batch),
            [None] * len(batch),
            ["{}"] * len(batch),
            [None] * len(batch),
            [priority for _, _, priority in batch],
        )

    def _is_too_heavy(self, action: str, key: str) -> bool:
        """Whether a resource can never give the units; with a capacity of 0 its executions wait."""
        capacities = self.state.capacities
        return any(
            self.system.gates[stop.gate].kind == "resource" and 0 < (capacities[stop.gate] or 0) < stop.units
            for stop in self.system.routes[action, key]
        )

    def _execution(self, ticket: int) -> Execution:
        return next(e for e in self.state.executions if e.ticket == ticket)

    def _ids(self, tickets: Sequence[int]) -> list[int]:
        return [self.live[ticket].execution_id for ticket in tickets]

    def _offers(self, tickets: Sequence[int]) -> list[Offer]:
        return [
            Offer(execution_id=ExecutionId(live.execution_id), attempt=Attempt(live.attempt))
            for live in (self.live[ticket] for ticket in tickets)
        ]

    async def _claim(self, tickets: Sequence[int]) -> str:
        self.workers += 1
        worker = f"worker-{self.workers}"
        await self.protocol.register(worker, pools=("default", "free"))
        await self.protocol.record(worker).exchange(self._offers(tickets))
        return worker

    async def _finish(self, tickets: Sequence[int], *, retry: bool = False) -> None:
        worker = await self._claim(tickets)
        reports = [
            Report(
                execution_id=offer.execution_id,
                attempt=offer.attempt,
                status=Status.FAILED if retry else Status.COMPLETED,
                result_json=None if retry else "1",
                retry_delay_seconds=60.0 if retry else None,
            )
            for offer in self._offers(tickets)
        ]
        await self.protocol.record(worker).exchange(reports)
        for ticket in tickets:
            self.live[ticket].ended = Status.DELAYED if retry else Status.COMPLETED

    async def _settled(self, messages: Sequence[tuple[int, int, Status | None]]) -> asyncpg.Record:
        return await self.protocol.row(
            "SELECT * FROM turnstile.settle($1, $2, in_statuses => $3)",
            [i for i, _, _ in messages],
            [attempt for _, attempt, _ in messages],
            [None if status is None else status.value for _, _, status in messages],
        )

    async def _settle(self, tickets: Sequence[int], *, keep: bool = False) -> None:
        """Settle in one batch what has ended."""
        messages = []
        for ticket in tickets:
            live = self.live[ticket]
            assert live.ended is not None
            messages.append(
                (live.execution_id, live.attempt, None if live.ended is Status.DELAYED else live.ended)
            )
        row = await self._settled(messages)
        assert row["settled_count"] == len(tickets)
        self._note(row)
        await self._grant_more()
        for ticket in tickets:
            self.live[ticket].ended = None
            if not keep:
                del self.tickets[self.live.pop(ticket).execution_id]
        await self._compare(self.gates.settle(self.state, *tickets))

    async def _end(self, tickets: Sequence[int], status: Status, *, settle_now: bool) -> None:
        """Executions have ended without a run."""
        for ticket in tickets:
            self.live[ticket].ended = status
        if settle_now:
            await self._settle(tickets)
            return
        # They keep what they hold: the model has them as granted. At the first gate they hold nothing.
        ended = tuple(e._replace(gate=GRANTED) if e.ticket in tickets else e for e in self.state.executions)
        await self._advance()
        await self._compare(self.gates.decide(self.state._replace(executions=ended)))

    async def _limit_queue(self, gate: int, value: int | None) -> None:
        name = self.system.gates[gate].name
        action, _, key = name.partition("/")
        if not key:
            await self._roll_out(action, "max_concurrent = $2", value)
            return
        await self.connection.execute(
            "INSERT INTO key_override (action_id, concurrency_key, has_limit, max_concurrent)"
            " VALUES ($1, $2, true, $3)"
            " ON CONFLICT (action_id, concurrency_key) DO UPDATE SET has_limit = true, max_concurrent = $3",
            self.action_ids[action],
            key,
            value,
        )
        await self.connection.execute(
            "UPDATE action_queue SET max_concurrent = $2 WHERE id = $1", self.queue_ids[gate], value
        )
        await self.connection.execute("SELECT turnstile.close_routes($1)", [self.queue_ids[gate]])

    async def _roll_out(self, action: str, change: str, value: object) -> None:
        await self.connection.execute(
            f"UPDATE action SET {change}, rollout_from_key = '' WHERE ref = $1", action, value
        )
        self._note(
            await self.protocol.row("SELECT * FROM turnstile.roll_out($1, 1000)", self.action_ids[action])
        )
        await self.connection.execute(
            "UPDATE action_queue q SET max_concurrent = k.max_concurrent FROM key_override k"
            " WHERE k.action_id = q.action_id AND k.concurrency_key = q.concurrency_key AND k.has_limit"
        )

    async def _reroute(self, action: str) -> None:
        await self.connection.execute("SELECT turnstile.reroute($1)", [self.action_ids[action]])

    async def _changed(self, state: State, gates: Sequence[int], *, opens: bool) -> None:
        """A gate was paused, resumed, raised or lowered."""
        before = {e.ticket: e for e in self.state.executions}
        await self._grant_more()
        if opens:
            for gate in gates:
                if gate in self.queue_ids:
                    self.more.add(self.queue_ids[gate])
                if gate in self.gate_ids:
                    self.more |= set(
                        await self.protocol.column(
                            "SELECT * FROM turnstile.queues_behind($1, 1000)", self.gate_ids[gate]
                        )
                    )
            await self._grant_more()
        await self._advance()
        step = self.gates.decide(state)
        closes = not opens and any(
            e.held and e.gate != GRANTED and self.gates.obstacle(Table(self.system, state), e) is not None
            for e in state.executions
        )
        if not closes:
            await self._compare(step)
            return
        # Others passed while these returned.
        await self._resume_from(state, before)

    async def _resume_from(self, state: State, before: dict[int, Execution]) -> None:
        """Take the state of the tables, which has to be at rest."""
        seen = Seen(self, await found(self.connection))
        seen.check()
        executions, granted = [], []
        for execution in state.executions:
            gate, held = seen.positions[execution.ticket]
            queue_key = execution.queue_key
            stops = [stop for stop in self.system.routes[queue_key] if stop.gate in seen.hidden(queue_key)]
            kept = dict(held) | ({stop.gate: stop.units for stop in stops} if gate == GRANTED else {})
            if gate == GRANTED or gate != self.system.routes[queue_key][0].gate:
                kept[self.system.routes[queue_key][0].gate] = 1
            if gate != GRANTED:
                passed = [stop.gate for stop in self.system.routes[queue_key]]
                assert passed[: len(kept) + 1] == [*sorted(kept), gate], "it waits on an old route"
            if self.live[execution.ticket].ended is not None:
                kept = dict(before[execution.ticket].held)
            executions.append(execution._replace(gate=gate, held=tuple(sorted(kept.items()))))
            if gate == GRANTED and before[execution.ticket].gate != GRANTED:
                granted.append(execution)
        assert sorted(e.ticket for e in granted) == sorted(self.granted), "granted and not returned"
        starts = [list(instants) for instants in state.starts]
        for execution in granted:
            for rate in self.system.rate_names[execution.action]:
                number = self.system.rate_number[rate]
                starts[number] = [*starts[number], state.now][-self.system.rates[rate].starts :]
        free = self.system.number["pool free"]
        tags = {flow: tag for flow, tag in state.tags if flow[0] == free} | seen.tags
        times = {key: time for key, time in state.virtual_times if key[0] == free} | seen.times
        self.state = state._replace(
            executions=tuple(sorted(executions)),
            tags=tuple(sorted(tags.items())),
            virtual_times=tuple(sorted(times.items())),
            starts=tuple(map(tuple, starts)),
        )
        self.granted = []
        step = self.gates.decide(self.state)
        assert not step.passages, f"not at rest after a change: {step.passages} pass"
        moving = set(self.state.executions) - set(step.state.executions)
        assert not moving, f"not at rest after a change: {moving} have to return"

    def _note(self, row: asyncpg.Record) -> None:
        """Take the grants of a statement."""
        for grant in row["granted"] or ():
            ticket = self.tickets[grant["execution_id"]]
            self.granted.append(ticket)
            self.live[ticket].attempt = grant["attempt"]
        self.more |= set(row.get("more_queue_ids") or ())

    async def _grant_more(self) -> None:
        for _ in range(20):
            if not self.more:
                return
            queue_ids, self.more = sorted(self.more), set()
            self._note(await self.protocol.row("SELECT * FROM turnstile.grant_slots($1)", queue_ids))
        raise AssertionError("there is always one more queue to grant")

    async def _advance(self) -> None:
        for _ in range(50):
            row = await self.protocol.row("SELECT * FROM turnstile.advance_gates(3)")
            self._note(row)
            await self._grant_more()
            if not row["remaining"]:
                self._note(await self.protocol.row("SELECT * FROM turnstile.pass_rates()"))
                await self._grant_more()
                return
        raise AssertionError("advance_gates never ends")

    # The comparison.

    async def _compare(self, step: Step) -> None:
        """Compare the tables with the model after this step, and the grants."""
        self.state = step.state
        granted, self.granted = sorted(self.granted), []
        # An execution may be granted and reclaimed in the model only in different operations.
        assert granted == sorted(step.grants), f"granted {granted}, the model {sorted(step.grants)}"
        seen = Seen(self, await found(self.connection))
        seen.check()
        seen.compare(self.state)


async def found(connection: Connection) -> dict[str, Any]:
    """Read the tables in one query."""
    contents: dict[str, Any] = json.loads(await connection.fetchval(_SEEN))
    return contents


class Tables:
    """The contents of the tables that decide who passes which gate."""

    def __init__(self, contents: dict[str, Any]) -> None:
        self.found = {name: [] if value is None else value for name, value in contents.items()}
        self.gates = {gate["id"]: gate for gate in self.found["gates"]}
        self.queues = {queue["id"]: queue for queue in self.found["queues"]}

    def check(self) -> None:
        """Check that every counter is right, and that everything that waits can be found."""
        assert self.found["old_versions"] == 0, "an old version of a gate's state was kept"
        depths, held, queue_held = Counter[int](), Counter[int](), Counter[int]()
        firsts: dict[tuple[int, int, int], int] = {}
        for _, priority, place, line_id, flow_gate_id, queue_id, gate_ids, units in self.found["waiting"]:
            depths[flow_gate_id or line_id] += 1
            queue_held[queue_id] += queue_id is not None
            held.update(dict(zip(gate_ids or (), units or (), strict=True)))
            if flow_gate_id is None:
                listed = self.gates.get(line_id) or self.queues[line_id]
                bound = listed["head_id"] if priority == 3 else (listed["heads"] or [None] * 5)[priority - 1]
                is_found = bound is not None and bound <= place
                assert is_found, "it waits before the bound from which its list is read"
            else:
                line_key = flow_gate_id, line_id, priority
                firsts[line_key] = min(place, firsts.get(line_key, place))
        for _, queue_id, gate_ids, units, _ in self.found["held"]:
            queue_held[queue_id] += 1
            held.update(dict(zip(gate_ids or (), units or (), strict=True)))
        turns = {}
        for gate_id, line_id, _, priority, tag, place in self.found["turns"]:
            if place is not None:
                bounds = self.gates[gate_id]["heads"] or self.gates[gate_id]["virtual_times"]
                assert bounds[priority - 1] <= tag, "a turn is before the bound from which turns are read"
                assert (gate_id, line_id, priority) not in turns, "a flow has two turns"
                turns[gate_id, line_id, priority] = place
        assert turns == firsts, "the turns of flows are not their first executions"
        for gate_id, gate in self.gates.items():
            assert (gate["held"], gate["depth"]) == (held[gate_id], depths[gate_id]), (
                f"gate {gate['kind']} {gate['name']}: written are {gate['held']} held, {gate['depth']} wait;"
                f" there are {held[gate_id]} and {depths[gate_id]}"
            )
            assert gate["returning_from"] is None, "the return from a gate has not ended"
        for queue_id, queue in self.queues.items():
            assert (queue["held"], queue["depth"]) == (queue_held[queue_id], depths[queue_id]), (
                f"queue {queue_id}: {queue['held']} held, {queue['depth']} waiting are written;"
                f" there are {queue_held[queue_id]} and {depths[queue_id]}"
            )


class Seen(Tables):
    """The contents of the tables in the terms of the model."""

    def __init__(self, twin: Twin, contents: dict[str, Any]) -> None:
        super().__init__(contents)
        self.twin = twin
        self.positions: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = {}
        for execution_id, _, _, line_id, flow_gate_id, _, gate_ids, units in self.found["waiting"]:
            gate = twin.model_gates[flow_gate_id or line_id]
            self.positions[twin.tickets[execution_id]] = gate, self._held(gate_ids, units)
        for execution_id, _, gate_ids, units, _ in self.found["held"]:
            assert twin.tickets[execution_id] not in self.positions, "it waits and holds a slot"
            self.positions[twin.tickets[execution_id]] = GRANTED, self._held(gate_ids, units)
        for ticket, live in twin.live.items():
            if live.ended is not None and ticket not in self.positions:
                self.positions[ticket] = GRANTED, ()
        self.tags: dict[Any, int] = {}
        flows = {action_id: name for name, action_id in twin.action_ids.items()}
        queues = {
            queue_id: twin.system.gates[gate].name.partition("/")[2]
            for gate, queue_id in twin.queue_ids.items()
        }
        for gate_id, _, flow_id, priority, tag, _ in self.found["turns"]:
            if gate_id in twin.model_gates:
                name = queues[flow_id] if self.gates[gate_id]["kind"] == "action" else flows[flow_id]
                flow = twin.model_gates[gate_id], priority, name
                self.tags[flow] = max(tag, self.tags.get(flow, 0))
        self.times = {
            (twin.model_gates[gate_id], priority): time
            for gate_id, gate in self.gates.items()
            if gate_id in twin.model_gates
            for priority, time in enumerate(gate["virtual_times"], 1)
            if time
        }

    def _held(self, gate_ids: list[int] | None, units: list[int] | None) -> tuple[tuple[int, int], ...]:
        numbers = self.twin.model_gates
        pairs = zip(gate_ids or (), units or (), strict=True)
        return tuple((numbers[gate_id], n) for gate_id, n in pairs if gate_id in numbers)

    def hidden(self, queue_key: tuple[str, str]) -> set[int]:
        """The gates of a route that the tables do not have."""
        return {stop.gate for stop in self.twin.system.routes[queue_key]} - set(self.twin.gate_ids)

    def compare(self, state: State) -> None:
        """Compare with a state of the model."""
        system = self.twin.system
        expected = {}
        for execution in state.executions:
            held = tuple((gate, units) for gate, units in execution.held if gate in self.twin.gate_ids)
            expected[execution.ticket] = execution.gate, held
        positions = self.positions
        differing = {
            ticket: f"{self._named(positions.get(ticket))}, in the model {self._named(expected.get(ticket))}"
            for ticket in positions.keys() | expected.keys()
            if positions.get(ticket) != expected.get(ticket)
        }
        assert not differing, f"executions differ: {differing}"
        times = dict(state.virtual_times)
        tags = dict(state.tags)
        for flow in {flow for flow in tags if flow[0] in self.twin.gate_ids} | self.tags.keys():
            time = times.get(flow[:2], 0)
            assert max(time, tags.get(flow, 0)) == max(time, self.tags.get(flow, 0)), (
                f"the tag of {flow} is {self.tags.get(flow)}, in the model {tags.get(flow)}, time {time}"
            )
        for key in self.times.keys() | {key for key in times if key[0] in self.twin.gate_ids}:
            if system.gates[key[0]].fair:
                assert self.times.get(key, 0) == times.get(key, 0), f"virtual time of {key}"

    def _named(self, position: tuple[int, tuple[tuple[int, int], ...]] | None) -> str:
        if position is None:
            return "gone"
        gates = self.twin.system.gates
        holds = ", ".join(f"{units} of {gates[gate].name}" for gate, units in position[1])
        where = "granted" if position[0] == GRANTED else f"waits at {gates[position[0]].name}"
        return f"{where} with {holds or 'nothing'}"
