"""`executor top` on a real terminal: its screen and its keys."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.cli.conftest import CommandLines

_DEADLINE_SECONDS = 60.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|4[0-7]|9[0-7])m")


class Terminal:
    """A terminal of 30 lines and 120 columns, with a command on it."""

    def __init__(self, controller: int, command: "subprocess.Popen[bytes]") -> None:
        self.controller = controller
        self.command = command
        self.written = ""

    def type(self, keys: str) -> None:
        os.write(self.controller, keys.encode())

    def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, self.written[-3000:]
            self._read(0.05)

    def shows(self, text: str) -> None:
        self.until(lambda: text in self.written)

    def ends(self) -> int:
        self.until(lambda: self.command.poll() is not None)
        self._read(0.0)
        return self.command.wait()

    def _read(self, wait_seconds: float) -> None:
        while select.select([self.controller], [], [], wait_seconds)[0]:
            try:
                data = os.read(self.controller, 65536)
            except OSError:  # Linux raises this once the other end is closed
                return
            if not data:
                return
            self.written += data.decode("utf-8", "replace")
            wait_seconds = 0.0


@contextmanager
def _default_ctrl_c() -> Iterator[None]:
    """Processes started in the background ignore SIGINT, and child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def on_a_terminal(system: CommandLines, *arguments: str, **settings: str) -> Iterator[Terminal]:
    controller, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "xterm-256color"}
    with _default_ctrl_c():
        command = subprocess.Popen(
            [sys.executable, "-m", "turnstile.executor.cli", *arguments],
            env={**environment, **system.environment, **settings},
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
    os.close(end)
    try:
        yield Terminal(controller, command)
    finally:
        command.kill()
        command.wait()
        os.close(controller)


def action(system: CommandLines, ref: str) -> Any:
    return system.executor("actions", "show", ref, "--json").json


def test_keys_pause_resume_and_change_the_limit_of_the_selected_action(
    system: CommandLines, ref: str
) -> None:
    system.executor("submit", ref)
    with on_a_terminal(system, "top", "--search", ref, "--interval", "200ms") as terminal:
        terminal.shows(ref)
        terminal.shows("1 of 1")
        terminal.type("p")
        terminal.shows(f"Pause {ref}?")
        terminal.type("y")
        terminal.until(lambda: action(system, ref)["paused"])
        terminal.shows(f"{ref}: paused")
        terminal.type("r")
        terminal.until(lambda: not action(system, ref)["paused"])
        terminal.type("++-")
        terminal.shows(f"Limit of {ref}: 1 to 2?")
        assert action(system, ref)["max_concurrent"] == 1
        terminal.type("y")
        terminal.shows(f"{ref}: limit 2")
        assert action(system, ref)["max_concurrent"] == 2
        terminal.type("j\x1b[Bs")
        terminal.shows("by oldest")
        terminal.type("q")
        assert terminal.ends() == 0
    assert _COLOUR.search(terminal.written)
    assert "\x1b[?1049h" in terminal.written
    assert "\x1b[?1049l" in terminal.written.split("\x1b[?1049h")[1]
    assert "Traceback" not in terminal.written


def test_ctrl_c_restores_the_terminal_and_no_color_is_honoured(system: CommandLines, ref: str) -> None:
    with on_a_terminal(system, "top", "--search", ref, NO_COLOR="1") as terminal:
        before = termios.tcgetattr(terminal.controller)[3]
        terminal.shows(ref)
        assert not termios.tcgetattr(terminal.controller)[3] & termios.ICANON
        terminal.command.send_signal(signal.SIGINT)
        assert terminal.ends() == 130
        assert termios.tcgetattr(terminal.controller)[3] == before
    assert not _COLOUR.search(terminal.written)
    assert "Traceback" not in terminal.written
