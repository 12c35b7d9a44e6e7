"""Actions of the workers in tests/integration/worker/test_process.py."""

import asyncio
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from turnstile.worker import action, command_action


@action("core.wait")
async def wait(seconds: float = 60.0) -> str:
    """Wait, and let itself be cancelled."""
    await asyncio.sleep(seconds)
    return "waited"


@action("core.deaf")
async def deaf() -> None:
    """Wait, whatever happens."""
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@action("core.block")
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "blocked"


@action("core.child")
def child(path: str) -> None:
    """Run a program in another process."""
    Path(path).write_text(str(os.getpid()))
    subprocess.run(["sleep", "600"], check=True)


@action("core.program")
async def program(path: str) -> None:
    """Run a program from the event loop."""
    process = await asyncio.create_subprocess_exec("sleep", "600")
    Path(path).write_text(str(process.pid))  # noqa: ASYNC240
    if code := await process.wait():
        raise subprocess.CalledProcessError(code, "sleep")


orphaning = command_action("core.orphans", argv=["sh", "-c", "sleep 600 >/dev/null 2>&1 &"])
sleeping = command_action("core.sleeping", argv=["sleep", "600"])
