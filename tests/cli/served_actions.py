"""Actions that the worker of these tests serves."""

from worker import PermanentError, action


@action("cli.add")
async def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


@action("cli.fail")
async def fail(message: str = "as it was told") -> None:
    """Fail."""
    raise PermanentError(message)
