"""Locations in source code, as log lines and errors name them: `reports.py:12 in render`."""

import os
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Final

from turnstile.worker.logs import clipped

_CHARS_MAX: Final = 300
_NOT_OF_USER: Final = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]) + os.sep,
    "<",
)


def shown_location(code: CodeType, line: int) -> str:
    """Return a location in a function's code as text."""
    return clipped(f"{Path(code.co_filename).name}:{line} in {code.co_name}", _CHARS_MAX)


def is_of_user(code: CodeType) -> bool:
    """Return whether code is neither of Python's library, nor of an installed package, nor ours."""
    return not code.co_filename.startswith(_NOT_OF_USER)
