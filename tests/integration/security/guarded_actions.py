"""Actions of the secured installation: async, plain, failing once, and one that runs until its cancel."""

import asyncio

from turnstile.worker import Context, TemporaryError, action


@action("guarded.echo", max_concurrent=2)
async def echo(number: int) -> int:
    """Return what it was given."""
    return number


@action("guarded.flaky", max_concurrent=1, retry={"max_attempts": 2, "delay": "100ms"})
async def flaky(context: Context) -> int:
    """Succeed at the second attempt."""
    if context.attempt == 1:
        raise TemporaryError("not yet", delay=0.1)
    return context.attempt


@action("guarded.child", max_concurrent=1)
def child(number: int) -> int:
    """Run in a process of its own."""
    return number


@action("guarded.hold", max_concurrent=1)
async def hold() -> None:
    """Run until it is stopped."""
    await asyncio.Event().wait()
