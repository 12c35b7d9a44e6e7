"""Tests of actions and of applications that submit them (docs/how-to/test-your-actions.md).

`run` and `run_async` run one attempt of an action in this process, without servers; within `started` the
start hooks are called once for all of them. `installation` starts a whole private Turnstile; the pytest
plugin does that once per session, and empties it before each test. `FakeClient` records what an application
submits, and plays outcomes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from turnstile.testing.running import Ran, RunOptions, run, run_async, started, started_async

if TYPE_CHECKING:
    from turnstile.testing.fake_client import FakeClient
    from turnstile.testing.private_installation import Installation, installation

__all__ = [
    "FakeClient",
    "Installation",
    "Ran",
    "RunOptions",
    "installation",
    "run",
    "run_async",
    "started",
    "started_async",
]

_MODULES = {
    "FakeClient": "fake_client",
    "Installation": "private_installation",
    "installation": "private_installation",
}

# Hidden from type checkers, for which it would make every name exist.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what is large at its first use (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
