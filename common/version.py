"""The version of the installed package, as commands, traces, workers and the API name it."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_COMMIT: Final = Path(__file__).with_name("commit")
"""Written by `make release`; a checkout has none."""


def installed_version() -> str:
    """Return the installed version of Turnstile, with its commit after a `+` where a release knows it.

    0 in a tree that is not installed.
    """
    try:
        number = version("turnstile-scheduler")
    except PackageNotFoundError:
        return "0"
    return f"{number}+{_COMMIT.read_text().strip()}" if _COMMIT.exists() else number
