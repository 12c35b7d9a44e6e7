"""Actions that the worker of these tests serves."""

import asyncio
from pathlib import Path

from turnstile.worker import Context, PermanentError, action


@action("cli.add")
async def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


@action("cli.fail")
async def fail(message: str = "failed as requested") -> None:
    """Fail."""
    raise PermanentError(message)


@action("cli.talk")
async def talk(context: Context, until: str) -> None:
    """Log a line, and a second one when the file `until` exists."""
    context.logger.info("first %s", "word")
    while not await asyncio.to_thread(Path(until).exists):
        await asyncio.sleep(0.05)
    context.logger.info("last word")
