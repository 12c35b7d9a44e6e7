"""The programs `turnstile`, `executor` and `worker`; the first also as `python -m turnstile`.

Each says which extra it needs where its packages are not installed.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from turnstile.common import needs_extra
from turnstile.common.exit_codes import ExitCode


def main() -> None:
    """Run `turnstile`, and its health check directly: importing the whole command line takes far longer."""
    if sys.argv[1:] == ["healthcheck"]:
        from turnstile.healthcheck import healthcheck  # noqa: PLC0415

        healthcheck()
        return
    with _importing("turnstile", extra="cli"):
        from turnstile.cli import main as run  # noqa: PLC0415
    run()


def executor() -> None:
    """Run `executor`."""
    with _importing("executor", extra="executor"):
        from turnstile.cli import executor as run  # noqa: PLC0415
    run()


def worker() -> None:
    """Run `worker`."""
    with _importing("worker", extra="worker"):
        from turnstile.worker.cli import main as run  # noqa: PLC0415
    run()


@contextmanager
def _importing(program: str, *, extra: str) -> Iterator[None]:
    """Exit with a sentence where a module is missing."""
    # What modules create stays: a tenth of the start was spent on looking for garbage among it.
    gc.set_threshold(20_000, 20, 50)
    try:
        yield
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{needs_extra(f'`{program}`', extra)} ({error.name} is missing)\n")
        sys.exit(ExitCode.USAGE)


if __name__ == "__main__":
    main()
