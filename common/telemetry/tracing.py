"""Traces are off, at the cost of a comparison with None, until a process switches them on.

In: an OTLP endpoint, from `TURNSTILE_OTLP_ENDPOINT` or the standard `OTEL_...` variables. Out: `active()`,
called wherever a span could begin. Without an endpoint nothing of OpenTelemetry is imported, and received
trace contexts are passed on unchanged.
"""

import os
from typing import TYPE_CHECKING, Final

from turnstile.common import needs_extra
from turnstile.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from turnstile.common.telemetry.spans import Spans

_STANDARD: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_active: "Spans | None" = None


def active() -> "Spans | None":
    """Return the factory of spans, or None while traces are off."""
    return _active


def switch_on(spans: "Spans | None") -> None:
    """Set the factory of spans; None switches traces off."""
    global _active  # noqa: PLW0603  (one exporter per process)
    _active = spans


def configure_tracing(*, service: str, endpoint: str | None) -> None:
    """Export the spans of this process to an endpoint, if the settings or the environment name one.

    Raises CommandFailed where the packages for it are not installed.
    """
    if not _is_wanted(endpoint):
        return
    try:
        from turnstile.common.telemetry.spans import exporting_spans  # noqa: PLC0415  (only where traces are on)
    except ImportError as error:
        from turnstile.common.cli import CommandFailed  # noqa: PLC0415  (only for this error)

        named = "TURNSTILE_OTLP_ENDPOINT" if endpoint else next(n for n in _STANDARD if os.environ.get(n))
        raise CommandFailed(
            f"{named}: {needs_extra('tracing', 'otel')}, or leave the variable out ({error.name} is missing)",
            exit_code=ExitCode.USAGE,
        ) from None
    switch_on(exporting_spans(service=service, endpoint=endpoint))


def _is_wanted(endpoint: str | None) -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return bool(endpoint) or any(os.environ.get(name) for name in _STANDARD)
