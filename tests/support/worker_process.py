"""Worker processes for tests that play the leader (`turnstile.testing.worker_check.leader`)."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.processes import ServiceProcess, start_service
from tests.support.service_template import DIES_WITH_US

ROOT = Path(__file__).parents[2]


class WorkerOnCore:
    """A worker process."""

    def __init__(self, process: ServiceProcess, log: Path) -> None:
        self.process = process
        self.log = log

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def ended(self, seconds: float = 30.0) -> int:
        return await asyncio.wait_for(self.process.wait(), seconds)

    def text(self) -> str:
        return self.log.read_text()


@asynccontextmanager
async def worker_process(
    amqp_url: str, folder: Path, module: str, *, within: Sequence[str] = DIES_WITH_US, **settings: str
) -> AsyncIterator[WorkerOnCore]:
    """A worker that serves a module, until the end of the block; its log is printed if the block fails.

    `within` is a command that starts it.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TURNSTILE_")},
        "TURNSTILE_AMQP_URL": amqp_url,
        "TURNSTILE_LEASE_DURATION": "6s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_STOP_GRACE": "500ms",
        "TURNSTILE_LOG_FLUSH_INTERVAL": "100ms",
        "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}",
        **settings,
    }
    log = folder / "worker.log"
    process = await start_service(
        ("turnstile.worker.cli", "serve", "--actions", module),
        environment=environment,
        folder=ROOT,
        log=log,
        within=within,
    )
    worker = WorkerOnCore(process, log)
    try:
        yield worker
    except BaseException:
        sys.stderr.write(worker.text()[-6000:])
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
