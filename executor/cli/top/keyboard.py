"""Single keys from a terminal, while the rest of it stays as it was."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Final, Self

_SEQUENCES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b": "escape",
}
_BYTES_MAX: Final = 256


class Keyboard:
    """The keys of the terminal on stdin; Ctrl-C stays an interrupt."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()

    def __enter__(self) -> Self:
        """Take each key as it comes, unseen."""
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def keys(self, wait_seconds: float) -> list[str]:
        """Return the keys that are there, after waiting for the first; a closed terminal is 'q'."""
        ready, _, _ = select.select([self._descriptor], [], [], max(wait_seconds, 0.0))
        if not ready:
            return []
        data = os.read(self._descriptor, _BYTES_MAX)
        return named(data) if data else ["q"]


def named(data: bytes) -> list[str]:
    """Return the names of the keys in what a terminal sent."""
    keys = []
    while data:
        sequence = next((known for known in _SEQUENCES if data.startswith(known)), None)
        if sequence is None:
            keys.append(chr(data[0]))
            data = data[1:]
        else:
            keys.append(_SEQUENCES[sequence])
            data = data[len(sequence) :]
    return keys
