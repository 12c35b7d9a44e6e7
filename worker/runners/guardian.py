"""Ends what this worker runs, whole and in every case: also if the worker is killed, stopped or cut off (P6).

In: runs that start and end, the order to end one, the instant until which all may run. Out: the word that one
was ended, and whether its time was over. The work is done by a process beside the worker, which outlives it:
when the worker dies, its pipe closes, and that ends everything; `hold_until` names the instant when that
happens though the worker is only stopped. A guardian that died is replaced. Next: `guardian_main`.
"""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from turnstile.worker.runners.environment import inherited_environment
from turnstile.worker.runners.mark import RunMark

_MAIN: Final = Path(__file__).with_name("guardian_main.py")
_CHUNK_BYTES: Final = 64 * 1024
_END_SECONDS: Final = 5.0
_RESTART_SECONDS: Final = 1.0
"""Between two starts at the least, should something kill every one."""
logger = logging.getLogger(__name__)


class Guardian:
    """A small process beside the worker; use it as a context, within a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._groups: dict[RunMark, int | None] = {}
        self._deadline_seconds: float | None = None
        self._on_ended: dict[str, Callable[[], None]] = {}
        self._overdue: set[str] = set()
        self._heard = b""
        # A deadline may be told by another thread while the guardian, and its pipe, is being replaced.
        self._telling = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._started_at = 0.0
        self._start()

    def announce(self, mark: RunMark) -> None:
        """Note a run that is about to start: from now on it is found even if nobody lives to say more."""
        self._groups[mark] = None
        self._tell(f"+{mark.text}")

    def watch(self, mark: RunMark, group: int) -> None:
        """Note the group, and session, of a run that has started."""
        self._groups[mark] = group
        self._tell(f"+{mark.text} {group}")

    def forget(self, mark: RunMark) -> None:
        """Strike out a run that has ended; what it left is looked for, and killed, soon."""
        self._groups.pop(mark, None)
        self._overdue.discard(mark.text)
        self._on_ended.pop(mark.text, None)
        self._tell(f"-{mark.text}")

    def end(self, mark: RunMark, on_ended: Callable[[], None]) -> None:
        """Kill all of a run, then call `on_ended`: at once, if there is no guardian to do it."""
        self._on_ended[mark.text] = on_ended
        if not self._tell(f"!{mark.text}"):
            self._answered(mark.text)

    def hold_until(self, deadline_seconds: float | None) -> None:
        """Let what runs go on until this instant of CLOCK_BOOTTIME, and no longer unless told anew.

        It is the guardian that kills then, so it happens though this process is stopped. None: no deadline.
        May be called from any thread.
        """
        self._deadline_seconds = deadline_seconds
        self._tell(_deadline(deadline_seconds))

    def ended_overdue(self, mark: RunMark) -> bool:
        """Whether the guardian ended this run because its time was over; ask before you forget it."""
        self._listen()
        return mark.text in self._overdue

    def close(self) -> None:
        """End the guardian, and with it all that was not struck out."""
        self._closed = True
        process = self._leave()
        if process is None:
            return
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._closed:
            return
        self._started_at = self._loop.time()
        process = subprocess.Popen(
            # -I -S: nothing but the standard library, so that it is small and up in 20 ms.
            [sys.executable, "-I", "-S", str(_MAIN)],
            env=inherited_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with self._telling:
            notes = [f"+{mark.text} {group or ''}" for mark, group in self._groups.items()]
            text = "\n".join([*notes, _deadline(self._deadline_seconds), ""])
            # Waits where it is long; from then on nobody waits for the guardian.
            process.stdin.write(text.encode())
            process.stdin.flush()
            os.set_blocking(process.stdin.fileno(), False)
            self._process = process
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._listen)

    def _leave(self) -> subprocess.Popen[bytes] | None:
        with self._telling:
            process, self._process = self._process, None
            if process is not None:
                assert process.stdin is not None
                assert process.stdout is not None
                self._loop.remove_reader(process.stdout.fileno())
                process.stdin.close()
                process.stdout.close()
        return process

    def _tell(self, line: str) -> bool:
        with self._telling:
            if self._process is None or self._process.stdin is None:
                return False
            try:
                # A line is far below PIPE_BUF, so it is written whole, or not at all.
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())
            except BlockingIOError:
                # It has read nothing for a long time, and now it has missed something: another must do.
                self._process.kill()
                return False
            except BrokenPipeError:
                return False
        return True

    def _listen(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        try:
            data = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._replace()
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            kind, mark_text = line[:1], line[1:].decode()
            if kind == b"~":
                self._overdue.add(mark_text)
            else:
                self._answered(mark_text)

    def _answered(self, mark_text: str) -> None:
        if (on_ended := self._on_ended.pop(mark_text, None)) is not None:
            on_ended()

    def _replace(self) -> None:
        process = self._leave()
        if process is not None:
            # Its end of the pipe is closed, so it has ended, or has nothing left to do.
            process.kill()
            process.wait()
        self._heard = b""
        logger.warning("guardian_replaced")
        for mark_text in list(self._on_ended):
            self._answered(mark_text)
        self._loop.call_at(max(self._loop.time(), self._started_at + _RESTART_SECONDS), self._start)


def _deadline(deadline_seconds: float | None) -> str:
    return "=" if deadline_seconds is None else f"={deadline_seconds:.6f}"
