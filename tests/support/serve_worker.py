"""`worker serve` on the new core, as a process: the module of the actions, settings from the environment."""

import asyncio
import logging
import sys

from turnstile.common.http import listen
from turnstile.common.lifecycle import run_service
from turnstile.common.settings import read_settings
from turnstile.common.telemetry.logs import WarningRecorder, configure_logging
from turnstile.worker.actions import load_actions
from turnstile.worker.health import serve_with_health
from turnstile.worker.process_service import ProcessSettings, WorkerService


def main() -> None:
    settings = read_settings(ProcessSettings)
    configure_logging(level=settings.log_level, form=settings.log_format)
    notes = WarningRecorder()
    logging.getLogger().addHandler(notes)
    targets = sys.argv[1:]
    loaded = load_actions(*targets)

    async def run(stop: asyncio.Event) -> None:
        service = WorkerService(settings, targets, loaded, start_notes=notes)
        if settings.worker_http_port is None:
            await service.serve(stop)
        else:
            listener = listen("127.0.0.1", settings.worker_http_port, settings="TURNSTILE_WORKER_HTTP")
            await serve_with_health(service.serve(stop), service.readiness, service.degraded, listener)

    run_service(run)


if __name__ == "__main__":
    main()
