"""Every command line and its options, as `--help` says them."""

from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from turnstile.executor.cli import app as executor_app
from turnstile.stress.cli import app as stress_app
from turnstile.worker.cli import app as worker_app

_HEAD = """# Commands

`executor`, `worker` and `turnstile stress`, each with `--help`. Exit codes: 0 success, 1 rejected or failed,
2 wrong usage or setting, 3 a server cannot be reached, 4 timeout.
"""
_APPS = {"executor": executor_app, "worker": worker_app, "turnstile stress": stress_app}


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, app in _APPS.items():
        parts += [f"\n## {name}\n", *_described(get_command(app), name)]
    return "\n".join(parts)


def _described(command: Any, path: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    yield f"### {path}\n\n```\n{command.get_help(context).strip()}\n```\n"
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            # Some commands are only loaded when they are called.
            yield from _described(getattr(inner, "load", lambda inner=inner: inner)(), f"{path} {name}")
