"""The system of all trials of a round: one database and one vhost, one worker that stays, no executor yet.

In: URLs of a migrated database and a vhost. Out: an `Environment`, in which trials start executors and
workers, with a `Client` that submits, and which knows whether everything has ended and what is wrong with the
history, by the judge of chaos.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import httpx

from tests.proof.chaos.history import Window, witnessed
from tests.proof.chaos.judge import Bounds, judged
from tests.proof.chaos.listener import declare_listener
from tests.proof.chaos.load import Submit
from tests.proof.chaos.submitters import Sent, SubmitLog
from tests.proof.crash.actions import LICENCES
from tests.proof.run_log import RUN_LOG, RUN_LOG_VARIABLE
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import cancel_request, publishing, request, until
from turnstile.common.broker.message import Outgoing, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE
from turnstile.common.domain.errors import Code
from turnstile.executor.dead_letters.envelope import (
    DIED_AT_HEADER,
    ERROR_CODE_HEADER,
    ORIGINAL_KEY_HEADER,
)

ACTIONS: Final = "tests.proof.crash.actions"
SETTINGS: Final = {
    "TURNSTILE_LEASE_DURATION": "3s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
    "TURNSTILE_WEBHOOK_TIMEOUT": "1s",
    "TURNSTILE_STOP_GRACE": "300ms",
}
_DEADLINE_SECONDS: Final = 60.0
_RUN_SECONDS: Final = 0.01
_BOUNDS: Final = Bounds(idle_seconds=3.0, overlap_seconds=3.0, worker_slots=10)
_LEFT: Final = """
SELECT (SELECT count(*) FROM ledger.execution WHERE completed_at IS NOT NULL) < $1
    OR EXISTS (SELECT FROM ledger.execution WHERE completed_at IS NULL)
    OR EXISTS (SELECT FROM ledger.inbox)
"""
Body = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Client:
    """Submits over AMQP and over HTTP, and remembers what it sent: the witness of P5.

    Each request has a tag in its metadata, which means nothing to the services. Requests over HTTP have an
    idempotency key: without an answer they are sent again.
    """

    publisher: Publisher
    http: httpx.AsyncClient
    log: SubmitLog = field(default_factory=SubmitLog)
    _unanswered: list[Sent] = field(default_factory=list)

    async def publish(self, *bodies: Body) -> list[Sent]:
        """Submit over AMQP, in this order, confirmed."""
        sent = [self._sent("amqp", body) for body in bodies]
        await self._confirmed([request(each.body, message_id=each.submit.message_id) for each in sent])
        for each in sent:
            each.confirmed_at = datetime.now(UTC)
        return sent

    async def publish_dead_letter(self, body: Body) -> None:
        """Publish a request to the dead letters, as if it had been refused for a reason that is gone."""
        # Replays have no order.
        sent = self._sent(f"dead letter {len(self.log.sent)}", body)
        message = request(sent.body, message_id=sent.submit.message_id)
        died = {
            ERROR_CODE_HEADER: str(Code.UNAVAILABLE),
            ORIGINAL_KEY_HEADER: message.routing_key,
            DIED_AT_HEADER: datetime.now(UTC).isoformat(),
        }
        await self._confirmed(
            [replace(message, exchange=DEAD_LETTER_EXCHANGE, headers={**(message.headers or {}), **died})]
        )
        sent.confirmed_at = datetime.now(UTC)

    async def replay_dead_letters(self, url: str) -> None:
        """Replay all dead letters; a dying executor gives no answer."""
        try:
            answer = await self.http.post(f"{url}/api/v1/dead-letters/replay", json={"all": True})
        except httpx.HTTPError:
            return
        assert answer.status_code == httpx.codes.OK, answer.text

    async def publish_cancel(self, sent: Sent) -> None:
        """Cancel by the idempotency key."""
        self.log.cancelled.add(sent.submit.number)
        await self._confirmed([cancel_request({"idempotency_key": sent.body["idempotency_key"]})])

    async def post(self, url: str, body: Body) -> None:
        """Submit over HTTP; without an answer it is left for `post_again`."""
        key = f"http {len(self.log.sent)}"
        self._unanswered.append(self._sent("http", {**body, "idempotency_key": key}))
        await self.post_again(url)

    async def post_again(self, url: str) -> None:
        """Send in order what has no answer yet, until one is missing again."""
        while self._unanswered:
            sent = self._unanswered[0]
            try:
                answer = await self.http.post(f"{url}/api/v1/executions", json=sent.body)
            except httpx.HTTPError:
                return
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            assert answer.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), answer.text
            sent.confirmed_at, sent.execution_id = datetime.now(UTC), answer.json()["id"]
            del self._unanswered[0]

    async def _confirmed(self, messages: Sequence[Outgoing]) -> None:
        outcomes = await self.publisher.publish(messages)
        assert all(outcome is Publication.CONFIRMED for outcome in outcomes)

    def _sent(self, submitter: str, body: Body) -> Sent:
        number = len(self.log.sent)
        parameters = {"seconds": _RUN_SECONDS, **body.get("parameters", {})}
        return self.log.sending(
            Submit(
                number=number,
                submitter=submitter,
                at_seconds=0.0,
                message_id=str(uuid4()),
                body={**body, "parameters": parameters, "metadata": {"tag": number}},
                run_in_seconds=None,
            )
        )


async def submit_everything(client: Client, url: str) -> None:
    """Submit one of each action; one is cancelled at once."""
    key = f"key {len(client.log.sent)}"
    soon = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    sent = await client.publish(
        {"action_ref": "crash.one"},
        {"action_ref": "crash.one", "idempotency_key": key},
        {"action_ref": "crash.two"},
        {"action_ref": "crash.free"},
        {"action_ref": "crash.keyed", "parameters": {"key": "first"}},
        {"action_ref": "crash.keyed", "parameters": {"key": "second"}, "idempotency_key": f"{key} b"},
        {"action_ref": "crash.retried", "parameters": {"failures": 1}},
        {"action_ref": "crash.licensed"},
        {"action_ref": "crash.free", "run_at": soon},
    )
    await client.publish_cancel(sent[1])
    await client.post(url, {"action_ref": "crash.two"})


@dataclass(slots=True, kw_only=True)
class Environment:
    """The system of the round, its client, and its history so far."""

    system: System
    client: Client
    history: History
    began_at: datetime
    published: dict[int, set[str]] = field(default_factory=dict)
    """What a listener has heard so far."""
    executor: Service | None = None
    """The one that stays, if there is one."""

    async def replace_executor(self) -> Service:
        """Start the executor that stays, and send it again what the dead one did not answer."""
        assert self.executor is None
        self.executor = await self.system.start_executor()
        await self.client.post_again(self.executor.http_url)
        return self.executor

    async def kill_executor(self) -> None:
        """Kill the executor that stays, if there is one."""
        if self.executor is not None:
            executor, self.executor = self.executor, None
            await executor.kill()

    async def drain(self) -> list[str]:
        """Wait until everything has ended; return what is wrong."""
        executor = self.executor
        assert executor is not None

        async def has_ended() -> bool:
            await self.client.post_again(executor.http_url)
            await self.client.replay_dead_letters(executor.http_url)
            return not await self.history.value(_LEFT, len(self.client.log.sent))

        try:
            await until(has_ended, "everything has ended", deadline_seconds=_DEADLINE_SECONDS)
        except AssertionError as late:
            return [str(late)]
        return []

    async def faults(self) -> list[str]:
        """Return what is wrong with the history so far."""
        system = self.system
        seen = await witnessed(
            system.database_url, system.amqp_url, system.folder, self.client.log, self.published
        )
        # Processes die all the time: slots may be idle, and nothing else is excused.
        deaths = Window(began_at=self.began_at, ended_at=datetime.now(UTC))
        broken, _ = judged(seen, replace(_BOUNDS, windows=[deaths]))
        letters = await self.history.value("SELECT count(*) FROM ledger.dead_letter")
        return [
            *broken,
            *await self.history.faults(),
            *([f"{letters} dead letters"] if letters else []),
        ]


@asynccontextmanager
async def running_environment(database_url: str, amqp_url: str) -> AsyncIterator[Environment]:
    """Start the worker; at the end no process is left."""
    async with (
        running(database_url, amqp_url, executors=0, workers=0, settings=SETTINGS) as system,
        publishing(amqp_url) as publisher,
        httpx.AsyncClient(trust_env=False, timeout=10) as http,
        history_of(database_url) as history,
    ):
        await declare_listener(amqp_url)
        client = Client(publisher=publisher, http=http)
        env = Environment(system=system, client=client, history=history, began_at=datetime.now(UTC))
        system.settings = {**system.settings, RUN_LOG_VARIABLE: str(system.folder / RUN_LOG)}
        executor = await env.replace_executor()
        # The worker registers an action that uses it.
        answer = await http.put(f"{executor.http_url}/api/v1/resources/{LICENCES}", json={"capacity": 4})
        assert answer.is_success, answer.text
        await system.start_worker(ACTIONS)
        yield env
