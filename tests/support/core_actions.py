"""Actions of the workers in tests/integration/worker_amqp."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from turnstile.common.domain.errors import PermanentError, TemporaryError
from turnstile.worker import Context, action, command_action


@action("core.note")
async def note(path: str, name: str = "", seconds: float = 0.0) -> str:
    """Note start and end in a file."""
    with Path(path).open("a") as file:  # noqa: ASYNC230
        file.write(f"+{name}\n")
        file.flush()
        await asyncio.sleep(seconds)
        file.write(f"-{name}\n")
    return name


@action("core.nothing")
async def nothing() -> None:
    """Do nothing."""


@action("core.wait")
async def wait(seconds: float = 60.0) -> str:
    """Wait, and let itself be cancelled."""
    await asyncio.sleep(seconds)
    return "waited"


@action("core.deaf")
async def deaf(seconds: float = 60.0) -> str:
    """Wait, whatever happens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "waited"


@action("core.block")
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "blocked"


@action("core.large")
async def large(size_bytes: int) -> str:
    return "x" * size_bytes


@action("core.fails")
async def fails(how: str) -> None:
    match how:
        case "permanent":
            raise PermanentError("never")
        case "temporary":
            raise TemporaryError("later", delay=7.5)
        case _:
            raise ValueError(how)


@action("core.says")
async def says(context: Context, seconds: float = 0.0) -> dict[str, object]:
    context.logger.info("one")
    print("two")
    context.progress(1, 4, "begun")
    await asyncio.sleep(seconds)
    context.progress(4, 4)
    context.logger.info("three")
    return {
        "attempt": context.attempt,
        "metadata": dict(context.metadata),
        "key": context.concurrency_key,
        "has_deadline": context.deadline is not None,
    }


@action("core.child")
def child(how: str = "ok", path: str = "") -> str:
    match how:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "runs a program":
            Path(path).write_text(str(os.getpid()))
            subprocess.run(["sleep", "600"], check=True)
        case "hangs":
            with subprocess.Popen(["sleep", "600"]) as grandchild:
                Path(path).write_text(f"{os.getpid()} {grandchild.pid}")
                grandchild.wait()
        case _:
            pass
    return f"{how} in another process"


@action("core.threaded")
async def threaded(path: str) -> str:
    """End with a thread that goes on."""
    asyncio.get_running_loop().run_in_executor(None, _slowly, path)
    return "ended"


def _slowly(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


@action("core.program")
async def program(path: str) -> None:
    """Run a program from the event loop."""
    process = await asyncio.create_subprocess_exec("sleep", "600")
    Path(path).write_text(str(process.pid))  # noqa: ASYNC240
    if code := await process.wait():
        raise subprocess.CalledProcessError(code, "sleep")


orphaning = command_action("core.orphans", argv=["sh", "-c", "sleep 600 >/dev/null 2>&1 &"])
sleeping = command_action("core.sleeping", argv=["sleep", "600"])
count_words = command_action("core.command", argv=["wc", "-w"])


@action("core.serial", max_concurrent=1)
async def serial(path: str, name: str) -> None:
    """Note start and end in a file, one after the other."""
    with Path(path).open("a") as file:  # noqa: ASYNC230
        file.write(f"+{name}\n")
        await asyncio.sleep(0)
        file.write(f"-{name}\n")
