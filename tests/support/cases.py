"""Cases that one test tries in turn."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(case: object) -> Iterator[None]:
    """Add the case to what fails in this block."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"case: {case}")
        raise
