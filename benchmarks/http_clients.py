"""HTTP clients: each sends one request after another over one connection, and pauses for a second after each.

Two of three requests list, a third submits. A client whose connection ends fails.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final
from urllib.parse import quote

from benchmarks.actions import ONE_BY_ONE, UNLIMITED
from benchmarks.waiting import beside

_PAUSE_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 30.0
_READS: Final = (
    f"executions?action_ref={quote(ONE_BY_ONE)}&status=completed&limit=50",
    "executions?status=queued&status=running&limit=50",
    "actions",
    f"actions/{quote(ONE_BY_ONE)}/queue-stats",
)


@dataclass(slots=True)
class Answers:
    """How long each answer took, and how many were refusals."""

    seconds: list[float] = field(default_factory=list)
    refusals: int = 0


@asynccontextmanager
async def clients(port: int, count: int, answers: Answers) -> AsyncIterator[None]:
    """Run clients beside the block, which begins when each has had an answer; adds the answers since then."""
    firsts = [asyncio.Event() for _ in range(count)]
    seen = Answers()
    async with beside(_client(port, n, count, first, seen) for n, first in enumerate(firsts)):
        async with asyncio.timeout(_PAUSE_SECONDS + _ANSWER_SECONDS):
            for first in firsts:
                await first.wait()
        before, refused = len(seen.seconds), seen.refusals
        yield
        answers.seconds += seen.seconds[before:]
        answers.refusals += seen.refusals - refused


async def _client(port: int, number: int, count: int, first: asyncio.Event, seen: Answers) -> None:
    # Spread, so that they do not ask all at once.
    await asyncio.sleep(_PAUSE_SECONDS * number / count)
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _ANSWER_SECONDS)
    try:
        for request in cycle(_requests(number)):
            began = time.monotonic()
            writer.write(request)
            async with asyncio.timeout(_ANSWER_SECONDS):
                is_refused = await _refused(reader)
            seen.seconds.append(time.monotonic() - began)
            seen.refusals += is_refused
            first.set()
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        writer.close()


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


async def _refused(reader: asyncio.StreamReader) -> bool:
    """Read an answer; return whether it says that the request was refused."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return not head.split()[1].startswith(b"2")
