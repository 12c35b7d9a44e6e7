"""What the actions of all proofs do: each logs its start, and that it runs, in the run log."""

from tests.proof.run_log import log_while_blocking, log_while_running
from turnstile.worker import Context, TemporaryError


async def in_loop(context: Context, seconds: float = 0.0) -> int:
    """Run for this time in the event loop."""
    await log_while_running(context.execution_id, context.attempt, seconds)
    return context.execution_id


def in_child(context: Context, seconds: float = 0.0) -> int:
    """Run for this time in a child process."""
    log_while_blocking(context.execution_id, context.attempt, seconds)
    return context.execution_id


async def keyed(context: Context, key: int | str, seconds: float = 0.0) -> int:
    """Run among those of the same concurrency key."""
    return await in_loop(context, seconds)


async def failing(context: Context, seconds: float = 0.0, failures: int = 0) -> int:
    """Fail in the first `failures` attempts."""
    result = await in_loop(context, seconds)
    if context.attempt <= failures:
        raise TemporaryError("planned", delay=0.2)
    return result
