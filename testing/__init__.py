"""Tests of actions and of applications that submit them (docs/how-to/test-your-actions.md).

`run` and `run_async` run one attempt of an action in this process, without servers. `installation` starts a
whole private Turnstile; the pytest plugin does that once per session, and empties it before each test.
"""

from turnstile.testing.running import Ran, RunOptions, run, run_async

__all__ = ["Installation", "Ran", "RunOptions", "installation", "run", "run_async"]


def __getattr__(name: str) -> object:
    """Import what needs servers at its first use (PEP 562)."""
    if name in ("Installation", "installation"):
        from turnstile.testing import installation as module  # noqa: PLC0415  (as above)

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
