"""The version of the installed package, as commands, traces, workers and the API name it."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the installed version of Turnstile; 0 in a tree that is not installed."""
    try:
        return version("turnstile-scheduler")
    except PackageNotFoundError:
        return "0"
