"""Every route of the HTTP API, from the same OpenAPI document that `/docs` shows."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

from generate.tables import table
from turnstile.executor.service import ExecutorService
from turnstile.executor.settings import ExecutorSettings

_HEAD = """# HTTP

Under `/api/v1`; `/actions/...` also without the prefix. JSON, snake_case, RFC 3339 times in UTC. Errors are
problem documents ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) whose `code` is one of
[these](states.md#codes-of-refusals) and whose `detail` names the field and the remedy. Lists are
`{items, next_cursor}`, with `?limit=&cursor=`. A running executor shows all of it at `/docs`,
and the document itself at `/openapi.json`. Any route may also answer 401 and 403 (a token lacks the role),
422 (something is wrong with the request) and 503 (a server is out of reach).
"""
_EVERYWHERE = {"401", "403", "422", "503"}
_METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Return the page."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        document = ExecutorService(ExecutorSettings(), listener).application(asyncio.Event()).openapi()
    by_tag: dict[str, list[tuple[str, ...]]] = {}
    for path, operations in document["paths"].items():
        for tag, row in _rows(path, operations):
            by_tag.setdefault(tag, []).append(row)
    parts = [_HEAD]
    for tag, rows in by_tag.items():
        parts += [f"\n## {tag}\n", table(("route", "what it does", "parameters", "answers"), rows)]
    return "\n".join(parts)


def _rows(path: str, operations: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for method in _METHODS:
        if (operation := operations.get(method)) is None:
            continue
        parameters = ", ".join(
            f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] != "path"
        )
        answers = ", ".join(sorted(operation["responses"].keys() - _EVERYWHERE))
        tag = (operation.get("tags") or ["other"])[0]
        yield tag, (f"`{method.upper()} {path}`", operation.get("summary", ""), parameters, answers)
