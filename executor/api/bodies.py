"""Reads bodies: bounded while they arrive, then as strictly as a message (`common.requests`)."""

import asyncio
from typing import Any, Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_json

LIST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest body that is a list."""
SMALL_BYTES_MAX: Final = 64 * 1024
"""Largest body of anything but executions."""
_DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024
_ARRIVAL_TIMEOUT_SECONDS: Final = 30.0


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """Return the body; raises Refusal when it is larger than `bytes_max` or does not arrive in time."""
    try:
        async with asyncio.timeout(_ARRIVAL_TIMEOUT_SECONDS):
            return await _arriving(request, bytes_max)
    except TimeoutError:
        raise Refusal(
            Code.INVALID_MESSAGE, f"body: did not arrive within {_ARRIVAL_TIMEOUT_SECONDS:g} s"
        ) from None
    except ClientDisconnect:
        raise Refusal(Code.INVALID_MESSAGE, "body: the connection ended before it did") from None


async def read_value(request: Request, *, bytes_max: int = SMALL_BYTES_MAX) -> Any:
    """Return the JSON value in the body; raises Refusal."""
    return read_json(await read_body(request, bytes_max=bytes_max), bytes_max=bytes_max)


async def _arriving(request: Request, bytes_max: int) -> bytes:
    body, arrived_bytes = bytearray(), 0
    async for part in request.stream():
        arrived_bytes += len(part)
        if arrived_bytes <= bytes_max:
            body += part
        elif arrived_bytes > _DISCARDED_BYTES_MAX:
            break
        # What is too large is let in and dropped: a client that still sends does not hear an answer.
        else:
            body.clear()
    if arrived_bytes > bytes_max:
        raise Refusal(
            Code.TOO_LARGE,
            f"body: {arrived_bytes} bytes and more, at most {bytes_max} are taken; send a reference instead",
        )
    return bytes(body)
