"""The system of all trials of a round: one database and one vhost, one worker that stays, no executor yet.

In: URLs of a migrated database and a vhost. Out: an `Environment`, in which trials start executors and
workers, with a `Client` that submits, and which knows whether everything has ended and what is wrong: with
the rows, and with what the actions themselves have logged.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import httpx

from tests.proof.crash.actions import LICENCES, LIMITS
from tests.proof.run_log import RUN_LOG, RUN_LOG_VARIABLE, Run, read_runs
from tests.support.history import History, history_of
from tests.support.processes import Service, System, running
from tests.support.traffic import cancel_request, publishing, request, until
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import DEAD_LETTER_EXCHANGE
from turnstile.common.domain.errors import Code
from turnstile.common.envelopes import DIED_AT_HEADER, ERROR_CODE_HEADER, ORIGINAL_KEY_HEADER
from turnstile.stress.check.counts import peak_concurrency

ACTIONS: Final = "tests.proof.crash.actions"
SETTINGS: Final = {
    "TURNSTILE_LEASE_DURATION": "3s",
    "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
    "TURNSTILE_WEBHOOK_TIMEOUT": "1s",
    "TURNSTILE_STOP_GRACE": "300ms",
}
_DEADLINE_SECONDS: Final = 60.0
_LEFT: Final = """
SELECT (SELECT count(*) FROM ledger.execution WHERE completed_at IS NOT NULL) < $1
    OR EXISTS (SELECT FROM ledger.execution WHERE completed_at IS NULL)
    OR EXISTS (SELECT FROM ledger.inbox)
"""
_ENDED: Final = """
SELECT id, action_ref, key, status::text, attempt, metadata ->> 'tag' AS tag FROM ledger.execution ORDER BY id
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
    tags: list[str] = field(default_factory=list)
    _unanswered: list[Body] = field(default_factory=list)

    async def publish(self, *bodies: Body) -> None:
        """Submit over AMQP, in this order, confirmed."""
        await self._confirmed([request(self._tagged(body)) for body in bodies])

    async def publish_dead_letter(self, body: Body) -> None:
        """Publish a request to the dead letters, as if it had been refused for a reason that is gone."""
        message = request(self._tagged(body))
        died = {
            ERROR_CODE_HEADER: str(Code.UNAVAILABLE),
            ORIGINAL_KEY_HEADER: message.routing_key,
            DIED_AT_HEADER: datetime.now(UTC).isoformat(),
        }
        await self._confirmed(
            [replace(message, exchange=DEAD_LETTER_EXCHANGE, headers={**(message.headers or {}), **died})]
        )

    async def replay_dead_letters(self, url: str) -> None:
        """Replay all dead letters; a dying executor gives no answer."""
        try:
            answer = await self.http.post(f"{url}/api/v1/dead-letters/replay", json={"all": True})
        except httpx.HTTPError:
            return
        assert answer.status_code == httpx.codes.OK, answer.text

    async def publish_cancels(self, *keys: str) -> None:
        """Cancel by idempotency keys."""
        await self._confirmed([cancel_request({"idempotency_key": key}) for key in keys])

    async def post(self, url: str, body: Body) -> None:
        """Submit over HTTP; without an answer it is left for `post_again`."""
        self._unanswered.append(self._tagged({**body, "idempotency_key": f"http {len(self.tags)}"}))
        await self.post_again(url)

    async def post_again(self, url: str) -> None:
        """Send in order what has no answer yet, until one is missing again."""
        while self._unanswered:
            try:
                answer = await self.http.post(f"{url}/api/v1/executions", json=self._unanswered[0])
            except httpx.HTTPError:
                return
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            assert answer.status_code in (httpx.codes.OK, httpx.codes.ACCEPTED), answer.text
            del self._unanswered[0]

    async def _confirmed(self, messages: Sequence[Any]) -> None:
        outcomes = await self.publisher.publish(messages)
        assert all(outcome is Publication.CONFIRMED for outcome in outcomes)

    def _tagged(self, body: Body) -> Body:
        self.tags.append(tag := f"{len(self.tags)}")
        return {**body, "metadata": {"tag": tag}}


async def submit_everything(client: Client, url: str) -> None:
    """Submit one of each action; one is cancelled at once."""
    key = f"key {len(client.tags)}"
    soon = (datetime.now(UTC) + timedelta(milliseconds=300)).isoformat()
    await client.publish(
        {"action_ref": "crash.one"},
        {"action_ref": "crash.one", "idempotency_key": key},
        {"action_ref": "crash.two"},
        {"action_ref": "crash.free"},
        {"action_ref": "crash.keyed", "parameters": {"customer": "first"}},
        {"action_ref": "crash.keyed", "parameters": {"customer": "second"}, "idempotency_key": f"{key} b"},
        {"action_ref": "crash.retried"},
        {"action_ref": "crash.licensed"},
        {"action_ref": "crash.free", "run_at": soon},
    )
    await client.publish_cancels(key)
    await client.post(url, {"action_ref": "crash.two"})


@dataclass(slots=True, kw_only=True)
class Environment:
    """The system of the round, its client, and its history so far."""

    system: System
    client: Client
    history: History
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
            return not await self.history.value(_LEFT, len(self.client.tags))

        try:
            await until(has_ended, "everything has ended", deadline_seconds=_DEADLINE_SECONDS)
        except AssertionError as late:
            return [str(late)]
        return []

    async def faults(self) -> list[str]:
        """Return what is wrong with the history so far."""
        ended = await self.history.rows(_ENDED)
        runs = read_runs(self.system.folder / RUN_LOG)
        letters = await self.history.value("SELECT count(*) FROM ledger.dead_letter")
        return [
            *_wrong_outcomes(self.client.tags, ended, {(run.execution_id, run.attempt) for run in runs}),
            *_wrong_runs(ended, runs),
            *await self.history.faults(),
            *([f"{letters} dead letters"] if letters else []),
        ]


def _wrong_outcomes(tags: Sequence[str], ended: Sequence[Any], runs: set[tuple[int, int]]) -> Iterator[str]:
    found = [row["tag"] for row in ended]
    if sorted(found, key=int) != tags:
        yield f"of {len(tags)} requests, {len(set(found))} are among {len(found)} executions"
    for row in ended:
        # A cancel may come too late.
        if row["status"] not in ("completed", "cancelled"):
            yield f"execution {row['id']} of {row['action_ref']} is {row['status']}"
        if row["status"] == "completed" and (row["id"], row["attempt"]) not in runs:
            yield f"execution {row['id']} has completed without a run of attempt {row['attempt']}"


def _wrong_runs(ended: Sequence[Any], runs: Sequence[Run]) -> Iterator[str]:
    """What ran twice under one number; limits and the order of first starts, of each queue with a limit."""
    for (execution_id, attempt), count in Counter((run.execution_id, run.attempt) for run in runs).items():
        if count > 1:
            yield f"attempt {attempt} of execution {execution_id} ran {count} times"
    queues: dict[tuple[str, str], set[int]] = {}
    for row in ended:
        if row["action_ref"] in LIMITS:
            queues.setdefault((row["action_ref"], row["key"]), set()).add(row["id"])
    for (ref, key), ids in queues.items():
        own = [run for run in runs if run.execution_id in ids]
        peak = peak_concurrency(
            (run.started_ns, run.started_ns if run.stopped_ns is None else run.stopped_ns) for run in own
        )
        if peak > LIMITS[ref]:
            yield f"{peak} of {ref} {key} ran at once"
        first: dict[int, None] = dict.fromkeys(run.execution_id for run in own if run.attempt == 1)
        if LIMITS[ref] == 1 and any(one > other for one, other in pairwise(first)):
            yield f"{ref} {key} started as {list(first)}"


@asynccontextmanager
async def running_environment(database_url: str, amqp_url: str) -> AsyncIterator[Environment]:
    """Start the worker; at the end no process is left."""
    async with (
        running(database_url, amqp_url, executors=0, workers=0, settings=SETTINGS) as system,
        publishing(amqp_url) as publisher,
        httpx.AsyncClient(trust_env=False, timeout=10) as http,
        history_of(database_url) as history,
    ):
        env = Environment(system=system, client=Client(publisher=publisher, http=http), history=history)
        system.settings = {**system.settings, RUN_LOG_VARIABLE: str(system.folder / RUN_LOG)}
        executor = await env.replace_executor()
        # The worker registers an action that uses it.
        answer = await http.put(f"{executor.http_url}/api/v1/resources/{LICENCES}", json={"capacity": 4})
        assert answer.is_success, answer.text
        await system.start_worker(ACTIONS)
        yield env
