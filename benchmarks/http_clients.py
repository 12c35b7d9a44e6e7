"""HTTP clients in a process of their own: each sends one request after another, over one connection.

`python -m benchmarks.http_clients PORT CLIENTS PAUSE_SECONDS`. A client pauses after each answer. Out: a line
once every client has had an answer, which begins the measurement; at the end of standard input one line of
JSON: seconds, the duration of each answer, and how many were refusals. A client whose connection ends fails.
"""

import asyncio
import json
import sys
import time
from itertools import cycle
from typing import Final
from urllib.parse import quote

import uvloop

from benchmarks.actions import ONE_BY_ONE, UNLIMITED

_ANSWER_SECONDS: Final = 30.0
_READS: Final = (
    f"executions?action_ref={quote(ONE_BY_ONE)}&status=completed&limit=50",
    "executions?status=queued&status=running&limit=50",
    "actions",
    f"actions/{quote(ONE_BY_ONE)}/queue-stats",
)


def _requests(number: int) -> list[bytes]:
    """Return what a client sends in turn: lists, and a submission after each two of them."""
    body = json.dumps({"action_ref": UNLIMITED[number % len(UNLIMITED)], "parameters": {"number": number}})
    submit = _request("POST", "executions", body)
    reads = [_request("GET", path) for path in _READS]
    found = [reads[0], reads[1], submit, reads[2], reads[3], submit]
    start = number % len(found)
    return found[start:] + found[:start]


def _request(method: str, path: str, body: str = "") -> bytes:
    fields = [
        f"{method} /api/v1/{path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]  # fmt: skip
    return "\r\n".join([*fields, "", body]).encode()


class _Clients:
    """Many clients, and what they saw since the measurement began."""

    def __init__(self, port: int, count: int, pause_seconds: float) -> None:
        self._port, self._count, self._pause_seconds = port, count, pause_seconds
        self._answered = 0
        self._all_answered = asyncio.Event()
        self._is_measured = False
        self.seconds: list[float] = []
        self.refusals = 0

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Let the clients run until the end of these lines; raises where one fails."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._client(number)) for number in range(self._count)]
            await self._all_answered.wait()
            self._is_measured = True
            began = time.monotonic()
            print("measured", flush=True)
            await lines.read()
            result = {
                "seconds": time.monotonic() - began, "answers": self.seconds, "refusals": self.refusals,
            }  # fmt: skip
            for task in running:
                task.cancel()
        print(json.dumps(result), flush=True)

    async def _client(self, number: int) -> None:
        # Spread, so that they do not ask all at once.
        await asyncio.sleep(self._pause_seconds * number / self._count)
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", self._port), _ANSWER_SECONDS
        )
        for turn, request in enumerate(cycle(_requests(number))):
            began = time.monotonic()
            writer.write(request)
            async with asyncio.timeout(_ANSWER_SECONDS):
                is_refused = await _refused(reader)
            if not turn:
                self._answered += 1
                if self._answered == self._count:
                    self._all_answered.set()
            if self._is_measured:
                self.seconds.append(time.monotonic() - began)
                self.refusals += is_refused
            await asyncio.sleep(self._pause_seconds)


async def _refused(reader: asyncio.StreamReader) -> bool:
    """Read an answer; return whether it says that the request was refused."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return not head.split()[1].startswith(b"2")


async def main(port: int, count: int, pause_seconds: float) -> None:
    """Run the clients."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await _Clients(port, count, pause_seconds).run(lines)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
