"""An example action; replace it with your own."""

from turnstile import Context, action


@action("hello.greet", max_concurrent=40)
async def greet(context: Context, name: str = "world") -> str:
    """Return a greeting."""
    context.logger.info("greeting")
    return f"Hello, {name}!"
