"""What each route asks for: the one table to read for who may do what over HTTP.

In: a method and a path. Out: the role that a bearer needs, or None where everybody is let in. A route that is
not listed asks for the highest role where it may change something, and a test fails until it is listed.
"""

from collections.abc import Mapping
from re import Pattern
from typing import Final

from starlette.routing import compile_path

from turnstile.executor.bearers import Role

PREFIX: Final = "/api/v1"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

ROLES: Final[Mapping[tuple[str, str], Role | None]] = {
    # Probes, and a page and its files without any data: what they show, they ask for with a token.
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/"): None,
    ("GET", "/dashboard/{file}"): None,
    ("GET", "/docs"): Role.READ,
    ("GET", "/docs/oauth2-redirect"): Role.READ,
    ("GET", "/openapi.json"): Role.READ,
    ("GET", "/metrics"): Role.READ,
    ("GET", "/audit"): Role.READ,
    ("GET", "/events"): Role.READ,
    ("GET", "/executions"): Role.READ,
    ("GET", "/executions/{execution_id}"): Role.READ,
    ("GET", "/executions/{execution_id}/logs"): Role.READ,
    ("POST", "/executions"): Role.SUBMIT,
    # Who submits may also end, or submit again, what it knows the id of.
    ("POST", "/executions/{execution_id}/cancel"): Role.SUBMIT,
    ("POST", "/executions/{execution_id}/retry"): Role.SUBMIT,
    # By a filter they reach what anybody submitted.
    ("POST", "/executions/cancel"): Role.OPERATE,
    ("POST", "/executions/retry"): Role.OPERATE,
    ("GET", "/actions"): Role.READ,
    ("GET", "/actions/{ref}"): Role.READ,
    ("GET", "/actions/{ref}/changes"): Role.READ,
    ("GET", "/actions/{ref}/queue"): Role.READ,
    ("GET", "/actions/{ref}/queue-stats"): Role.READ,
    ("PUT", "/actions/{ref}"): Role.OPERATE,
    ("PATCH", "/actions/{ref}"): Role.OPERATE,
    ("DELETE", "/actions/{ref}"): Role.OPERATE,
    ("POST", "/actions/{ref}/pause"): Role.OPERATE,
    ("POST", "/actions/{ref}/resume"): Role.OPERATE,
    ("GET", "/queues"): Role.READ,
    ("GET", "/workers"): Role.READ,
    ("POST", "/workers/{worker_id}/drain"): Role.OPERATE,
    ("GET", "/dead-letters"): Role.READ,
    ("GET", "/dead-letters/{name}"): Role.READ,
    ("POST", "/dead-letters/replay"): Role.OPERATE,
    ("POST", "/dead-letters/purge"): Role.OPERATE,
    ("GET", "/webhooks"): Role.READ,
    ("POST", "/webhooks/replay"): Role.OPERATE,
}


def role_of(method: str, path: str) -> Role | None:
    """Return the role that a request needs; None: it is open to everybody."""
    reads = method in READING
    asked = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else path
    for pattern, role in _PATTERNS.get("GET" if reads else method, ()):
        if pattern.match(asked):
            return role
    return Role.READ if reads else Role.OPERATE


def _patterns() -> dict[str, list[tuple[Pattern[str], Role | None]]]:
    found: dict[str, list[tuple[Pattern[str], Role | None]]] = {}
    # A word is meant before a place that takes any word.
    for (method, path), role in sorted(ROLES.items(), key=lambda entry: entry[0][1].count("{")):
        # As the router reads it, so that no path is one thing here and another one there.
        found.setdefault(method, []).append((compile_path(path)[0], role))
    return found


_PATTERNS: Final = _patterns()
