"""A second module of actions, in the pool of the first."""

from turnstile.worker import action


@action("other")
async def other() -> str:
    """Return its name."""
    return "other"
