"""Those outside: submitters, operators and listeners, as plain callbacks of the world.

A submitter publishes its requests in order and waits for the confirms; in doubt it publishes everything that
is not confirmed once more. Another one uses HTTP: its requests are rows of the inbox at once. A listener
notes all events.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final
from uuid import UUID

from tests.proof.simulation.broker import REQUESTS, Message, Rabbit
from tests.proof.simulation.database import Postgres
from tests.proof.simulation.loop import SimulatedLoop
from tests.proof.simulation.runner import NS, parameters_of
from tests.proof.simulation.story import CommandPlan, RequestPlan, Story
from turnstile.executor.leader.ports import CancelRequest, DefinitionCommand, Request, Singleton
from turnstile.stress.recording import NEVER, NONE, Answer, LimitChange

_BATCH: Final = 100


class Order:
    """What is known of one request."""

    __slots__ = ("answer", "answered_at", "confirmed_at", "execution_id", "plan", "sendings", "sent_at")

    def __init__(self, plan: RequestPlan) -> None:
        self.plan = plan
        self.sent_at = NEVER
        self.confirmed_at = NEVER
        self.answered_at = NEVER
        self.execution_id = NONE
        self.answer = Answer.NONE
        self.sendings = 0


class Clients:
    """All of them."""

    def __init__(
        self, loop: SimulatedLoop, random: Random, rabbit: Rabbit, postgres: Postgres, story: Story
    ) -> None:  # fmt: skip
        self.loop, self.random, self.story = loop, random, story
        self.rabbit, self.postgres = rabbit, postgres
        self.orders = {plan.number: Order(plan) for plan in story.requests}
        self.limit_changes: list[LimitChange] = []
        named = {each.number: each.singleton for each in story.requests if each.singleton is not None}
        postgres.singletons = {parameters_of(number): name for number, name in named.items()}
        self.cancelled = {*named}
        """Numbers of requests for which a cancel was sent, or which others replace."""
        self.events: dict[int, set[str]] = {}
        """Statuses by execution, as listeners heard them."""
        self.letters: list[Any] = []
        self.pending_commands = 0
        self.unconfirmed = len(self.orders)
        self._wall = postgres.clock
        self._asked: dict[UUID, tuple[int, int | None]] = {}
        self._asked_at: dict[UUID, int] = {}
        self._bodies: dict[int, Request] = {}
        self._by_inbox: list[Order] = []
        self._to_command: list[CommandPlan] = []
        self._paused: set[int] = set()
        self._limits = {number: action.limit for number, action in enumerate(story.actions)}
        self._submitters = [_Submitter(self, number) for number in range(story.submitters)]
        self.worker_id: Callable[[int], str | None] = lambda _: None
        """Returns the id of a worker, by its number."""
        self.on_drained: Callable[[int, float], None] = lambda *_: None
        """Called with its number when a worker is not drained any more, and since when it was."""
        self._drained: dict[int, list[tuple[str, float]]] = {}
        self._changed: dict[int, None] = {}
        """Actions that an operator has changed, in order."""
        self._undrained: dict[str, None] = {}
        """Workers whose drain an operator has ended, in order."""
        rabbit.on_event, rabbit.on_reply = self._event, self._reply
        rabbit.on_dead_letter = self.letters.append
        postgres.on_answer = self._answered

    def start(self) -> None:
        """Put everything that they will do on the timeline."""
        by_submitter: dict[int, list[RequestPlan]] = {}
        for plan in self.story.requests:
            by_submitter.setdefault(plan.submitter, []).append(plan)
        for submitter, plans in by_submitter.items():
            own = self._submitters[submitter]
            if submitter == self.story.inbox_submitter:
                for plan in plans:
                    self.loop.at(plan.at, self._submit_by_inbox, self.orders[plan.number])
                continue
            batch: list[Order] = []
            for plan in plans:
                if batch and (plan.at > batch[0].plan.at + 0.01 or len(batch) >= _BATCH):
                    self.loop.at(batch[0].plan.at, own.submit, batch)
                    batch = []
                batch.append(self.orders[plan.number])
            self.loop.at(batch[0].plan.at, own.submit, batch)
        for command in self.story.commands:
            self.pending_commands += 1
            self.loop.at(command.at, self._command, command)

    @property
    def are_done(self) -> bool:
        """Whether everything was sent and confirmed."""
        return not self.pending_commands and not self.unconfirmed

    # Requests.

    def body(self, plan: RequestPlan) -> Request:
        """Return the request as the door hands it over."""
        found = self._bodies.get(plan.number)
        if found is None:
            action = self.story.actions[plan.action]
            found = self._bodies[plan.number] = Request(
                action_ref="stress.unknown" if plan.is_invalid else action.ref,
                key=str(plan.key) if action.keys else "", parameters=parameters_of(plan.number),
                request_hash=UUID(int=plan.number), priority=plan.priority, ttl_seconds=plan.ttl_seconds,
                timeout_seconds=plan.timeout_seconds,
                run_at=None if plan.run_after is None else self._wall() + plan.run_after,
                idempotency_key=f"key-{plan.number}" if plan.has_idempotency_key else None,
                singleton=None if plan.singleton is None
                else Singleton(plan.singleton, "waiting_or_running", "cancel_running"),
            )  # fmt: skip
        return found

    def message(self, order: Order) -> Message:
        plan = order.plan
        key = UUID(int=plan.number + 1)
        if order.sendings > 1 and plan.has_idempotency_key:
            # A client that was started again: another message, the same idempotency key.
            key = UUID(int=(order.sendings << 64) | (plan.number + 1))
        return Message(self.body(plan), key, f"client-{plan.submitter}", str(plan.number))

    def _submit_by_inbox(self, order: Order) -> None:
        self._by_inbox.append(order)
        if len(self._by_inbox) == 1:
            self._send_by_inbox()

    def _send_by_inbox(self) -> None:
        if not self.postgres.is_up:
            self.loop.after(0.5, self._send_by_inbox)
            return
        now = round(self.loop.now * NS)
        for order in self._by_inbox:
            order.sent_at, order.confirmed_at, order.sendings = now, now, order.sendings + 1
            self.unconfirmed -= 1
            self.postgres.put_in_inbox(UUID(int=(1 << 100) | order.plan.number), self.body(order.plan))
        self._by_inbox.clear()

    # Commands.

    def _command(self, plan: CommandPlan) -> None:
        """Send a command; an operator repeats what was not taken, in order."""
        self._to_command.append(plan)
        if len(self._to_command) == 1:
            self._send_commands()

    def _send_commands(self) -> None:
        if not self.postgres.is_up:
            self.loop.after(0.5, self._send_commands)
            return
        for plan in self._to_command:
            self.pending_commands -= 1
            self._send_command(plan)
        self._to_command.clear()

    def _send_command(self, plan: CommandPlan) -> None:
        body: CancelRequest
        command_id = self._command_id()
        if plan.kind in ("cancel", "cancel by key"):
            order = self.orders.get(plan.target)
            if order is None:
                return
            if plan.kind == "cancel by key":
                body = CancelRequest(
                    execution_id=None, idempotency_key=f"key-{plan.target}", reason="by its key"
                )
            elif order.execution_id == NONE:
                return
            else:
                body = CancelRequest(
                    execution_id=order.execution_id, idempotency_key=None, reason="an operator"
                )
            self.cancelled.add(plan.target)
            if not plan.by_inbox and self.rabbit.is_up:
                self.rabbit.enqueue(REQUESTS, [Message(body, command_id)])
                return
        elif plan.kind == "drain":
            self._drain(plan, command_id)
            return
        else:
            self._change(plan, command_id)
            return
        self.postgres.put_in_inbox(command_id, body)

    def _change(self, plan: CommandPlan, command_id: UUID) -> None:
        """Change an action; a plan without a duration restores it."""
        number, is_over = plan.target, plan.seconds == 0.0
        if plan.kind == "limit":
            self._limits[number] = self.story.actions[number].limit if is_over else plan.limit
        elif is_over:
            self._paused.discard(number)
        else:
            self._paused.add(number)
        self._changed[number] = None
        self._define(number, command_id)
        if not is_over:
            self.pending_commands += 1
            self.loop.after(plan.seconds, self._command, replace(plan, seconds=0.0))

    def _define(self, number: int, command_id: UUID) -> None:
        action, is_paused = self.story.actions[number], number in self._paused
        definition = action.body(limit=self._limits[number], paused=is_paused)
        self._asked[command_id] = number, 0 if is_paused else self._limits[number]
        self._asked_at[command_id] = round(self.loop.now * NS)
        self.postgres.put_in_inbox(
            command_id, DefinitionCommand(kind="action", name=action.ref, definition=definition)
        )

    def _drain(self, plan: CommandPlan, command_id: UUID) -> None:
        """Drain a worker; a plan without a duration lets it take work again."""
        drained, is_over = self._drained.setdefault(plan.target, []), plan.seconds == 0.0
        if is_over:
            worker_id, since = drained.pop(0)
            self._undrained[worker_id] = None
            self.on_drained(plan.target, since)
        else:
            found = self.worker_id(plan.target)
            if found is None:
                return
            worker_id = found
            drained.append((worker_id, self.loop.now))
            self.pending_commands += 1
            self.loop.after(plan.seconds, self._command, replace(plan, seconds=0.0))
        self._set_draining(worker_id, command_id, is_draining=not is_over)

    def _set_draining(self, worker_id: str, command_id: UUID, *, is_draining: bool) -> None:
        definition = {"is_draining": is_draining}
        self.postgres.put_in_inbox(
            command_id, DefinitionCommand(kind="worker", name=worker_id, definition=definition)
        )

    def repeat_changes(self) -> None:
        """Send again what a failover may have lost: each action as it is to be, and the ends of drains."""
        for number in self._changed:
            self._define(number, self._command_id())
        for worker_id in self._undrained:
            if all(worker_id != other for drained in self._drained.values() for other, _ in drained):
                self._set_draining(worker_id, self._command_id(), is_draining=False)

    def _command_id(self) -> UUID:
        return UUID(int=(1 << 101) | self.random.getrandbits(60))

    def _answered(self, command_id: UUID, at: int, body: bytes) -> None:
        if command_id.int >> 100 == 1:
            number = command_id.int & ((1 << 60) - 1)
            self._note(self.orders[number], json.loads(body))
            return
        asked = self._asked.pop(command_id, None)
        if asked is not None:
            number, limit = asked
            self.limit_changes.append(
                LimitChange(
                    action=number, limit=limit, asked_at=self._asked_at.pop(command_id), answered_at=at
                )
            )

    @property
    def open_changes(self) -> list[LimitChange]:
        """Changes without an answer so far: they may be in force."""
        return [
            LimitChange(action=number, limit=limit, asked_at=self._asked_at[key], answered_at=NEVER)
            for key, (number, limit) in self._asked.items()
        ]

    # What comes back.

    def _event(self, body: Mapping[str, Any]) -> bool:
        if body.get("type") == "execution.completed":
            self.events.setdefault(body["execution_id"], set()).add(body["status"])
        return True

    def _reply(self, queue: str, body: Mapping[str, Any]) -> bool:
        number = body.get("correlation_id")
        if number is None or not queue.startswith("client-"):
            return True
        self._note(self.orders[int(number)], body)
        return True

    def _note(self, order: Order, body: Mapping[str, Any]) -> None:
        is_accepted = body["type"] == "execution.accepted"
        if order.answer in (Answer.NONE, Answer.REJECTED) or (is_accepted and order.execution_id == NONE):
            order.answered_at = round(self.loop.now * NS)
            if is_accepted:
                order.answer = Answer.DUPLICATE if body["duplicate"] else Answer.ACCEPTED
                order.execution_id = body["execution_id"]
            else:
                order.answer = Answer.REJECTED


class _Submitter:
    """Publishes in order; nothing overtakes what is in doubt."""

    def __init__(self, clients: Clients, number: int) -> None:
        self.clients = clients
        self.number = number
        self.waiting: list[Order] = []
        self.is_busy = False

    def submit(self, orders: Sequence[Order]) -> None:
        self.waiting.extend(orders)
        if not self.is_busy:
            self._send()

    def _send(self) -> None:
        clients = self.clients
        loop, rabbit, random = clients.loop, clients.rabbit, clients.random
        if not self.waiting:
            self.is_busy = False
            return
        self.is_busy = True
        if not rabbit.is_up:
            loop.after(0.2 + 0.2 * random.random(), self._send)
            return
        batch = self.waiting[:_BATCH]
        now = round(loop.now * NS)
        for order in batch:
            order.sendings += 1
            if order.sent_at == NEVER:
                order.sent_at = now
        messages = [clients.message(order) for order in batch]
        if random.random() < 0.02:
            # The connection breaks: a part arrives, and no confirm does.
            messages = messages[: random.randrange(len(messages) + 1)]
            loop.after(0.1 * random.random(), self._send)
        else:
            loop.after(4 * rabbit.latency() + rabbit.confirm_seconds, self._confirm, batch, rabbit.generation)
        loop.after(rabbit.latency(), self._arrive, messages, rabbit.generation)

    def _arrive(self, messages: list[Message], generation: int) -> None:
        rabbit = self.clients.rabbit
        if rabbit.is_up and rabbit.generation == generation:
            rabbit.enqueue(REQUESTS, messages)

    def _confirm(self, batch: list[Order], generation: int) -> None:
        rabbit, loop = self.clients.rabbit, self.clients.loop
        if rabbit.generation == generation:
            now = round(loop.now * NS)
            for order in batch:
                if order.confirmed_at == NEVER:
                    order.confirmed_at = now
                    self.clients.unconfirmed -= 1
            del self.waiting[: len(batch)]
        self._send()
