"""The action that a worker serves to be checked by `turnstile worker-check`: for workers of this project.

turnstile worker-check -- worker serve --actions turnstile.testing.worker_check.actions
"""

import asyncio
import time
from pathlib import Path
from typing import Any, Literal

from turnstile.worker import Context, PermanentError, TemporaryError, action


@action("check.run")
async def check_run(
    context: Context,
    *,
    trace: str,
    name: str,
    seconds: float,
    result: Any = None,
    text: str | None = None,
    progress: tuple[float, float] | None = None,
    fails: Literal["for now", "for good"] | None = None,
    delay: float | None = None,
) -> Any:
    """Run for some seconds, visibly, and end as the parameters say."""
    if text is not None:
        print(text)  # noqa: T201
    if progress is not None:
        context.progress(*progress)
    until = time.monotonic() + seconds
    _mark(trace, "begin", name)
    while (left_seconds := until - time.monotonic()) > 0:
        await asyncio.sleep(min(0.05, left_seconds))
        _mark(trace, "runs", name)
    if fails == "for now":
        raise TemporaryError("as asked", delay=delay)
    if fails == "for good":
        raise PermanentError("as asked")
    return result


def _mark(trace: str, kind: str, name: str) -> None:
    with Path(trace).open("a") as lines:
        lines.write(f"{kind} {name} {time.time()}\n")
