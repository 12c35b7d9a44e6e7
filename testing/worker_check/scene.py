"""One case as it runs: the worker under test behind a link that can be cut, its leader, and its trace.

The action `check.run` appends a line to the trace when it begins and every 50 ms while it runs, with its name
and the time: so what runs is seen by itself, and not only by what the worker reports.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import Offer, Offers
from turnstile.testing.worker_check.leader import ScriptedLeader, offer, until

ACTION: Final = "check.run"
CONCURRENCY: Final = 4
LEASE_SECONDS: Final = 5.0
MARGIN_SECONDS: Final = 1.0
"""Of this lease, by the rule of the page."""
HEARTBEAT_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 4.0
SETTINGS: Final = {
    "TURNSTILE_WORKER_NAME": "checked",
    "TURNSTILE_WORKER_POOLS": "checked",
    "TURNSTILE_WORKER_CONCURRENCY": str(CONCURRENCY),
    "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS:g}",
    "TURNSTILE_HEARTBEAT_INTERVAL": f"{HEARTBEAT_SECONDS:g}",
    "TURNSTILE_STOP_GRACE": f"{GRACE_SECONDS:g}",
    "TURNSTILE_DRAIN_TIMEOUT": f"{DRAIN_SECONDS:g}",
}
"""What the worker is told, beside TURNSTILE_AMQP_URL. Durations are seconds."""
SOON_SECONDS: Final = 10.0
"""For what a worker does at once: the machine may be busy."""
_START_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 0.6
"""For what must not happen, after a heartbeat has shown that the worker knows the reason."""
_RELAY_BYTES: Final = 1 << 16


class Scene:
    """What a case uses."""

    def __init__(self, leader: ScriptedLeader, link: "Link", worker: "Worker", trace: "Trace") -> None:
        self.leader = leader
        self.link = link
        self.worker = worker
        self.trace = trace

    async def joins(self) -> None:
        """Wait until the worker has said hello."""
        await self.until(
            lambda: bool(self.leader.hellos), "No worker.hello arrived within 60 s.", _START_SECONDS
        )

    async def serves(self) -> None:
        """Wait until heartbeats of the worker were answered: its lease is certain."""
        await self.joins()
        await self.until(
            lambda: len(self.leader.heartbeats) >= 2, "No two heartbeats arrived within 10 s of the hello."
        )

    async def until(self, condition: Any, otherwise: Any, seconds: float = SOON_SECONDS) -> None:
        """Wait for a condition; what is said otherwise is a sentence. The worker must not end meanwhile."""

        async def holds() -> bool:
            found = condition() if not asyncio.iscoroutinefunction(condition) else await condition()
            if not found and self.worker.broke is not None:
                raise AssertionError(self.worker.broke)
            return bool(found)

        await until(holds, otherwise, seconds)

    async def quiet(self) -> None:
        """Wait for as long as a wrong reaction to the messages so far would take to show."""
        count = len(self.leader.heartbeats)
        await self.until(lambda: len(self.leader.heartbeats) >= count + 2, "The heartbeats have stopped.")
        await asyncio.sleep(_QUIET_SECONDS)

    # Offers.

    def run(self, execution_id: int, *, grant: Grant | None = None, **given: Any) -> Offer:
        """Return an offer of `check.run`; what is no field of an offer is a parameter of the action."""
        names = ("priority", "expires_in_seconds", "timeout_seconds", "extra", "attempt")
        fields = {name: given.pop(name) for name in names if name in given}
        if grant is not None:
            fields["grant"] = grant
        parameters = {"trace": str(self.trace.path), "name": str(execution_id), "seconds": 0.3} | given
        return offer(execution_id, ACTION, json.dumps(parameters).encode(), **fields)

    async def offer(self, *ids: int, queue: str = "check.a", at_once: int | None = None, **given: Any) -> int:
        """Offer executions of one queue in one message; return its number."""
        return await self.offers(queue, at_once, *(self.run(each, **given) for each in ids))

    async def offers(self, queue: str, at_once: int | None, *offers: Offer) -> int:
        """Offer these; return the number of the message."""
        return await self.leader.send(Offers(queue=queue, at_once=at_once, offers=offers))

    async def runs(self, *ids: int) -> None:
        """Wait until these executions run."""

        def missing() -> str:
            return f"Within {SOON_SECONDS:g} s no start was seen of {sorted(set(ids) - self._begun())}."

        await self.until(lambda: self._begun() >= set(ids), missing)

    def _begun(self) -> set[int]:
        return {int(each) for each in self.trace.begun()}

    async def received(self, number: int) -> None:
        """Wait until a heartbeat has confirmed messages up to a number."""
        epoch = self.leader.epoch
        await self.until(
            lambda: any(
                each.received >= number and each.epoch_seen == epoch for each in self.leader.heartbeats
            ),
            f"No heartbeat said that all messages up to {number} were received.",
        )

    async def returned(self, *ids: int) -> None:
        """Wait for the returns of these executions."""

        def missing() -> str:
            return f"No execution.returned was reported of {sorted(set(ids) - self.leader.returns().keys())}."

        await self.until(lambda: self.leader.returns().keys() >= set(ids), missing)


class Mark(NamedTuple):
    """A line of the trace: seconds since 1970."""

    kind: str
    name: str
    at: float


class Trace:
    """What runs, as the action itself wrote it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def marks(self) -> list[Mark]:
        """Return the whole lines."""
        whole = self.path.read_text().rpartition("\n")[0]
        lines = (line.split() for line in whole.splitlines())
        return [Mark(kind, name, float(at)) for kind, name, at in lines]

    def begun(self) -> list[str]:
        """Return the names of what has begun, in this order; one that began twice is there twice."""
        return [each.name for each in sorted(self.marks(), key=lambda each: each.at) if each.kind == "begin"]

    def last(self, name: str | int) -> float:
        """Return when this one was last seen running; 0: never."""
        return max((each.at for each in self.marks() if each.name == str(name)), default=0.0)

    def is_running(self, name: str | int) -> bool:
        """Whether it was seen within the last 300 ms."""
        return time.time() - self.last(name) < 0.3

    def most_at_once(self, *names: str | int) -> int:
        """Return how many of these ran at the same time at most; without names, of all."""
        chosen = set(map(str, names)) or {each.name for each in self.marks()}
        spans = [(min(ats), max(ats)) for ats in self._seen(chosen) if ats]
        # One that begins in the millisecond in which another one ends follows it.
        return max((sum(first <= at < last for first, last in spans) for at, _ in spans), default=0)

    def _seen(self, names: set[str]) -> list[list[float]]:
        marks = self.marks()
        return [[each.at for each in marks if each.name == name] for name in names]


class Link:
    """A relay between the worker and the broker that can be cut."""

    def __init__(self, amqp_url: str) -> None:
        self._broker = urlsplit(amqp_url)
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Link"]:
        """Relay until the end of the block."""
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        account, at, _ = self._broker.netloc.rpartition("@")
        port = server.sockets[0].getsockname()[1]
        self.url = urlunsplit(self._broker._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `mend`."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Let new connections through."""
        self._is_cut = False

    async def _relay(self, worker: asyncio.StreamReader, to_worker: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_cut:
            to_worker.transport.abort()
            return
        broker, to_broker = await asyncio.open_connection(self._broker.hostname, self._broker.port or 5672)
        both = {to_worker, to_broker}
        self._open |= both
        await asyncio.gather(_pump(worker, to_broker), _pump(broker, to_worker))
        self._open -= both


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_RELAY_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()


class Worker:
    """The process under test."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log
        self.may_end = False

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.returncode

    @property
    def broke(self) -> str | None:
        """A sentence if the process has ended though the case gave no reason."""
        if not self.has_ended or self.may_end:
            return None
        return f"The process of the worker has ended with {self.exit_code}."

    def terminate(self) -> None:
        """Send SIGTERM to the process of the command."""
        self.may_end = True
        if not self.has_ended:
            self._process.send_signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the process and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def scene(amqp_url: str, command: Sequence[str], folder: Path) -> AsyncIterator[Scene]:
    """Start a leader and the worker, with its log and its trace in a folder; at the end both are gone."""
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(ScriptedLeader(amqp_url).leading())
        link = await stack.enter_async_context(Link(amqp_url).listening())
        outer = {name: each for name, each in os.environ.items() if not name.startswith("TURNSTILE_")}
        log = folder / "worker.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**outer, **SETTINGS, "TURNSTILE_AMQP_URL": link.url},
                start_new_session=True,
            )
        worker = Worker(process, log)
        stack.push_async_callback(worker.kill)
        yield Scene(leader, link, worker, Trace(folder / "trace"))
