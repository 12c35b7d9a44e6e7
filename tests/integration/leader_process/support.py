"""Executors whose leader processes can be killed, stopped and cut off."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiormq
import asyncpg

from tests.support.traffic import until
from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.asking.asker import Asker
from turnstile.executor.asking.broker_rpc import BrokerAsker
from turnstile.executor.leader.door import columns_of
from turnstile.executor.leader.ports import DefinitionCommand
from turnstile.executor.leader_process import LeaderSettings, LeaderStatus
from turnstile.executor.questions.protocol import Answered, Stats
from turnstile.executor.serving import COMMAND, LeaderService, ProcessTimes
from turnstile.migrations.run import migrate

SOON_SECONDS = 20.0


@dataclass
class Executor:
    """One executor: its leader process, and whom its HTTP would ask."""

    name: str
    leader: LeaderService
    broker: BrokerAsker
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    led_at: list[float] = field(default_factory=list)
    """When it began to lead, by `time.monotonic`."""
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def asker(self) -> Asker:
        return Asker(self.leader.local, self.broker)

    @property
    def is_leading(self) -> bool:
        return self.leader.status is not None and self.leader.status.is_leading

    @property
    def epoch(self) -> int:
        assert self.leader.status is not None
        return self.leader.status.epoch

    def note(self, status: LeaderStatus) -> None:
        if status.is_leading and not (self.led_at and self._was_leading):
            self.led_at.append(time.monotonic())
        self._was_leading = status.is_leading

    _was_leading: bool = False

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to the leader process; return its id."""
        pid = self.leader.pid
        assert pid is not None
        os.kill(pid, number)
        return pid

    async def stop(self) -> None:
        self.stopped.set()
        await self.tasks[0]

    async def until_leading(self) -> None:
        await until(lambda: self.is_leading, f"{self.name} leads", deadline_seconds=SOON_SECONDS)

    async def until_waiting(self) -> None:
        await until(
            lambda: self.leader.status is not None and not self.is_leading,
            f"{self.name} waits",
            deadline_seconds=SOON_SECONDS,
        )


@asynccontextmanager
async def executor(
    name: str,
    database_url: str,
    amqp_url: str,
    *,
    command: tuple[str, ...] = COMMAND,
    times: ProcessTimes | None = None,
) -> AsyncIterator[Executor]:
    settings = LeaderSettings(executor=name, database_url=database_url, amqp_url=amqp_url)
    leader = LeaderService(settings, command=command, times=times)
    one = Executor(name, leader, BrokerAsker(amqp_url))
    leader.on_status = one.note
    one.tasks = [asyncio.create_task(leader.run(one.stopped)), asyncio.create_task(one.broker.run())]
    try:
        yield one
    finally:
        for task in one.tasks:
            task.cancel()
        await asyncio.gather(*one.tasks, return_exceptions=True)


@asynccontextmanager
async def led_by_the_first(
    database_url: str, amqp_url: str, *others: tuple[str, str]
) -> AsyncIterator[list[Executor]]:
    """Executors of which the first one leads and the others wait.

    `others` are their URLs; without them there is one more.
    """
    async with AsyncExitStack() as exits:
        executors = [await exits.enter_async_context(executor("executor-0", database_url, amqp_url))]
        await executors[0].until_leading()
        for number, urls in enumerate(others or [(database_url, amqp_url)], 1):
            executors.append(await exits.enter_async_context(executor(f"executor-{number}", *urls)))
            await executors[-1].until_waiting()
        yield executors


async def has_action(asker: Asker, ref: str) -> bool:
    found = await asker.ask(Stats(action_refs=(ref,)))
    return isinstance(found, Answered) and found.body.items[0].stats is not None


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def resumed_at_the_end(pid: int) -> Iterator[None]:
    """A stopped process does not outlive the test."""
    try:
        yield
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGCONT)


class Store:
    """What the database says."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        connection = await asyncpg.connect(self._url)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()

    async def create_tables(self) -> None:
        await migrate(self._url)

    async def turns(self, epoch: int) -> list[int]:
        """Return the numbers of the turns of an epoch that are there."""
        rows = await self.fetch("SELECT number FROM ledger.turn WHERE epoch = $1 ORDER BY number", epoch)
        return [row["number"] for row in rows]

    async def leader(self) -> tuple[int, str]:
        (row,) = await self.fetch("SELECT epoch, executor FROM ledger.leadership")
        return row["epoch"], row["executor"]

    async def define(self, ref: str, **fields: Any) -> None:
        """Store the command that defines an action."""
        definition = ActionDefinition(ref=ref, **fields).model_dump(mode="json")
        row = columns_of(DefinitionCommand(kind="action", name=ref, definition=definition))
        await self.fetch(
            "INSERT INTO ledger.inbox (command_id, kind, body) VALUES ($1, $2, $3)",
            uuid4(),
            row.kind,
            row.body,
        )

    async def admitted(self) -> int:
        (row,) = await self.fetch("SELECT count(*) AS n FROM ledger.execution")
        count: int = row["n"]
        return count


async def publish_requests(amqp_url: str, count: int, *, ref: str = "a") -> None:
    """Publish so many requests, in one go."""
    connection = await aiormq.connect(amqp_url)
    try:
        channel = await connection.channel()
        for _ in range(count):
            properties = aiormq.spec.Basic.Properties(
                message_id=str(uuid4()), message_type="execution.requested", delivery_mode=2
            )
            body = json.dumps({"action_ref": ref, "parameters": {}}).encode()
            await channel.basic_publish(
                body, exchange="", routing_key="executor.requests", properties=properties
            )
    finally:
        await connection.close()
