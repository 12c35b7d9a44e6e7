"""A receiver on loopback: stores requests and sends prepared responses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True, kw_only=True)
class Receiver:
    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)
    """One for each request, the last one for all that follow; None: no answer at all."""
    running: int = 0
    peak_requests: int = 0
    delay_seconds: float = 0.0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def says(self, status: str, body: bytes = b"", *headers: str) -> None:
        self.answers.append(answer(status, body, *headers))

    def stop_hanging(self) -> None:
        """Close the connections that wait for a response."""
        self._released.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(Received(path=head[0].split()[1], headers=headers, body=body))
        self.running += 1
        self.peak_requests = max(self.peak_requests, self.running)
        prepared: bytes | None = answer("200 OK")
        if self.answers:
            prepared = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if prepared is None:
            await self._released.wait()
        else:
            await asyncio.sleep(self.delay_seconds)
        self.running -= 1
        if prepared is not None:
            writer.write(prepared)
        writer.close()


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(head).encode() + body


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    listener = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    receiver.port = listener.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        receiver.stop_hanging()
        listener.close()
