"""An action to begin with: put your own in its place."""

from turnstile.worker import Context, action


@action("hello.greet", max_concurrent=40)
async def greet(context: Context, name: str = "world") -> str:
    """Greet somebody."""
    context.logger.info("greeting")
    return f"Hello, {name}!"
