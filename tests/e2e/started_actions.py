"""Actions that need what the start hooks of their process make; each hook leaves a line in a file."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

from turnstile.worker import Context, action, lifespan, on_start, on_stop

FOLDER = "STARTED_ACTIONS_FOLDER"


def _note(line: str) -> None:
    with (Path(os.environ[FOLDER]) / "hooks").open("a") as file:
        file.write(f"{line} {os.getpid()}\n")


@on_start
def load_model(state: SimpleNamespace) -> None:
    """Fail while there is no model."""
    state.model = (Path(os.environ[FOLDER]) / "model").read_text()
    _note("start")


@lifespan
@asynccontextmanager
async def open_pool(state: SimpleNamespace) -> AsyncIterator[None]:
    """Hold something for the life of the process."""
    state.pool = "open"
    yield
    _note("closed")


@on_stop
async def say_goodbye() -> None:
    """Take no state."""
    _note("stop")


@on_start(where="worker")
def for_the_worker(state: SimpleNamespace) -> None:
    """Run once per worker, also if it has no async action."""
    _note("worker")
    state.here = "worker"


@on_start(where="child")
def for_children(state: SimpleNamespace) -> None:
    """Run in child processes."""
    _note("child")
    state.here = "child"


@action("started.async")
async def use_async(context: Context) -> list[str | int]:
    """Use the model in the worker's process."""
    return [context.state.model, context.state.pool, os.getpid(), context.state.here]


@action("started.plain")
def use_plain(context: Context) -> list[str | int]:
    """Use the model in a child process."""
    return [context.state.model, context.state.pool, os.getpid(), context.state.here]
