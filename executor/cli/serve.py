"""`executor serve`: runs the service until it is told to stop.

In: settings. Out: a running service, which is loaded only then; next: `executor.service`.
"""

import functools

from turnstile.common.command_line import EXIT_USAGE, CommandFailed, with_options
from turnstile.common.http_server import listen
from turnstile.common.lifecycle import run_service
from turnstile.common.settings import read_settings
from turnstile.common.telemetry import configure_logging
from turnstile.common.telemetry.tracing import configure_tracing
from turnstile.executor.settings import ExecutorSettings


@with_options(ExecutorSettings, functools.partial(read_settings, ExecutorSettings))
def serve(settings: ExecutorSettings) -> None:
    """Serve requests, queues and the HTTP API.

    Stops in order on SIGTERM or Ctrl-C; the second one ends at once.
    """
    from turnstile.executor.service import ExecutorService  # noqa: PLC0415

    if settings.is_exposed():
        raise CommandFailed(
            f"TURNSTILE_API_TOKENS: {settings.http_host} can be reached from other machines, and no token is "
            "set; set one (TURNSTILE_API_TOKENS=...), bind to 127.0.0.1 (TURNSTILE_HTTP_HOST), or say "
            "--insecure",
            exit_code=EXIT_USAGE,
        )
    configure_logging(level=settings.log_level, form=settings.log_format)
    configure_tracing(service="turnstile-executor", endpoint=settings.otlp_endpoint)
    listener = listen(settings.http_host, settings.http_port, settings="TURNSTILE_HTTP")
    run_service(ExecutorService(settings, listener).serve)
