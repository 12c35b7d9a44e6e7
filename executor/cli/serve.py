"""`executor serve`: runs the service.

In: settings from the environment. Out: a running service, or an error that names the setting.
"""

import asyncio
import functools
import logging
import os
from typing import Final

import asyncpg

from turnstile.common.cli import bad_input, with_options
from turnstile.common.database import CONNECTION_ERRORS, DatabaseHosts
from turnstile.common.http import listen
from turnstile.common.known_settings import warn_of_unknown_settings
from turnstile.common.lifecycle import run_service
from turnstile.common.settings import read_settings
from turnstile.common.telemetry.logs import configure_logging
from turnstile.common.telemetry.tracing import configure_tracing
from turnstile.executor.settings import ExecutorSettings

logger = logging.getLogger(__name__)

_TOKEN_SECONDS: Final = 5.0
_TOKENS_UNKNOWN: Final = (
    "no token is set, and the database, which may have tokens, cannot be read: requests are refused until it "
    "can; if it has none, create one with 'executor tokens create NAME --role admin --direct'"
)


@with_options(ExecutorSettings, functools.partial(read_settings, ExecutorSettings))
def serve(settings: ExecutorSettings) -> None:
    """Run the executor service.

    Serves the request queue, the HTTP API and the dashboard, and runs the watchdog. SIGTERM or Ctrl-C stops
    it gracefully; a second one stops it immediately.
    """
    from turnstile.executor.service import ExecutorService  # noqa: PLC0415

    has_token = not settings.is_exposed() or _has_stored_token(settings.database_url.get_secret_value())
    # Unknown: the service starts, and refuses all requests until it can read the tokens.
    if has_token is False:
        raise bad_input(
            f"TURNSTILE_API_TOKENS: {settings.http_host} can be reached from other machines, and no token is "
            "set; set one (TURNSTILE_API_TOKENS=...), create one in the database ('executor tokens create "
            "NAME --role admin --direct'), bind to 127.0.0.1 (TURNSTILE_HTTP_HOST), or add --insecure"
        )
    configure_logging(level=settings.log_level, form=settings.log_format)
    warn_of_unknown_settings(os.environ)
    if has_token is None:
        logger.warning("api_tokens_unknown", extra={"reason": _TOKENS_UNKNOWN})
    configure_tracing(service="turnstile-executor", endpoint=settings.otlp_endpoint)
    listener = listen(settings.http_host, settings.http_port, settings="TURNSTILE_HTTP")
    run_service(ExecutorService(settings, listener).serve)


def _has_stored_token(url: str) -> bool | None:
    """Return whether the database has an API token; None: it cannot be read now.

    A database without the table, which is not migrated yet, has none.
    """

    async def read() -> bool:
        connection = await DatabaseHosts(url, connect_seconds=_TOKEN_SECONDS).connect(
            command_timeout=_TOKEN_SECONDS
        )
        try:
            return bool(await connection.fetchval("SELECT EXISTS (SELECT FROM ledger.api_token)"))
        finally:
            await connection.close(timeout=_TOKEN_SECONDS)

    try:
        return asyncio.run(read())
    except asyncpg.UndefinedTableError:
        return False
    except (asyncpg.PostgresError, *CONNECTION_ERRORS):
        return None
