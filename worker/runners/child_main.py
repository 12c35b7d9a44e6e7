"""The child process: loads the actions once, then runs plain functions, one at a time.

In: `python -m turnstile.worker.runners.child_main <descriptor> module[:name]...`, frames on that descriptor.
Out: an `Ended` for each `Invoke`; stdout and stderr go to the attempt's log. It ends when the worker closes
the socket, and the kernel kills it when the worker dies (Linux).
"""

import asyncio
import ctypes
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable
from dataclasses import replace
from io import TextIOWrapper
from types import FrameType
from typing import Any, Final, cast

from turnstile.common.exit_codes import ExitCode
from turnstile.worker.actions import ActionsNotFound, RegisteredAction, action_from_entrypoint, load_actions
from turnstile.worker.context import Context
from turnstile.worker.core.outcomes import Completed, Failed
from turnstile.worker.lifespan import Lifespan, hooks_for
from turnstile.worker.logs import clipped, line_formatter
from turnstile.worker.outcome import OutcomeCatcher
from turnstile.worker.parameters import parameters_of
from turnstile.worker.progress import Progress, Throttle
from turnstile.worker.runners.child_protocol import (
    ChildChannel,
    Ended,
    Invoke,
    Loaded,
    LogLine,
    Reported,
    Setup,
    StopRequested,
    WorkerGone,
)

_PR_SET_PDEATHSIG: Final = 1
_PROGRESS_SECONDS: Final = 0.2
_LOG_LINE_CHARS_MAX: Final = 16 * 1024
"""Of a record in the worker's log; the attempt's own log has the whole record."""


class _Child:
    """The loaded actions, and the state of the running one."""

    def __init__(self, channel: ChildChannel, setup: Setup) -> None:
        self._channel = channel
        self._setup = setup
        self._actions: dict[str, RegisteredAction] = {}
        self._by_entrypoint: dict[str | None, RegisteredAction] = {}
        self._terminated = False
        self._lifespan = Lifespan(())
        self._loop: asyncio.Runner | None = None
        self._pid = os.getpid()
        self._streams = (sys.stdout, sys.stderr)
        self._handle_sigterm()

    def load(self, targets: list[str]) -> None:
        self._actions = {found.definition.ref: found for found in load_actions(*targets)} if targets else {}
        if hooks := hooks_for("child"):
            self._lifespan = Lifespan(hooks)
            self._loop = asyncio.Runner()
            self._loop.run(self._lifespan.start())

    def serve(self) -> None:
        """Run each call, until a stop is requested or a call has closed what the next one needs.

        Raises WorkerGone at the worker's end.
        """
        self._streams = (sys.stdout, sys.stderr)
        is_last = False
        while not is_last and not isinstance(message := self._channel.receive(), StopRequested):
            assert isinstance(message, Invoke)
            # Again for each call: the one before may have replaced them.
            self._handle_sigterm()
            sys.stdout, sys.stderr = self._streams
            outcome = self._outcome(message)
            if os.getpid() != self._pid:
                # The action forked a process, which has returned too: the answer is that of its parent.
                os._exit(ExitCode.OK if isinstance(outcome, Completed) else ExitCode.FAILED)
            is_last = not self._is_printing()
            self._channel.send(Ended(outcome=outcome, is_last=is_last))

    def close(self) -> None:
        """Call the hooks for the end of the process."""
        if self._loop is not None:
            with self._loop as loop:
                loop.run(self._lifespan.stop())

    def _is_printing(self) -> bool:
        """Flush what was printed; return whether the next call can print."""
        try:
            for stream in (*self._streams, sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            for fd in (1, 2):
                os.fstat(fd)
        except Exception:  # noqa: BLE001  (the action may have put anything in the place of a stream)
            return False
        return True

    def _outcome(self, invoke: Invoke) -> Completed | Failed:
        catcher = OutcomeCatcher(result_bytes_max=self._setup.result_bytes_max, write_log=_write_line)
        self._progress = Throttle(self._report, interval_seconds=_PROGRESS_SECONDS)
        with catcher:
            function = self._action(invoke).function
            assert function is not None
            arguments = parameters_of(function).read(invoke.parameters_json, lambda: self._context(invoke))
            value = function(**arguments)
            if inspect.isawaitable(value):
                asyncio.run(_awaited(value, catcher))
            else:
                catcher.returned(value)
        self._progress.close()
        outcome = catcher.outcome
        if self._terminated and isinstance(outcome, Failed):
            # Programs that the action had started may have died of the same signal.
            return replace(outcome, by_sigterm=True)
        return outcome

    def _context(self, invoke: Invoke) -> Context:
        return Context(
            invoke,
            write_line=_write_line,
            pass_on=self._pass_on,
            stop_reason=self._stop_reason,
            report_progress=self._progress.put,
            state=self._lifespan.state,
        )

    def _action(self, invoke: Invoke) -> RegisteredAction:
        # Declared actions take precedence, as in the worker; a changed entrypoint is another function.
        entrypoint = invoke.entrypoint if isinstance(invoke.entrypoint, str) else None
        known = self._actions.get(invoke.action_ref) or self._by_entrypoint.get(entrypoint)
        if known is None or known.function is None:
            if entrypoint is None:
                raise ActionsNotFound(
                    f"no module of this worker declares {invoke.action_ref!r}: add one with --actions, "
                    "or set the action's entrypoint"
                )
            known = action_from_entrypoint(invoke.action_ref, entrypoint)
            self._by_entrypoint[entrypoint] = known
        return known

    def _report(self, progress: Progress) -> None:
        self._channel.send(Reported(progress=progress))

    def _pass_on(self, level: int, message: str) -> None:
        self._channel.send(LogLine(level=level, message=clipped(message, _LOG_LINE_CHARS_MAX)))

    def _handle_sigterm(self) -> None:
        # A handler, not SIG_IGN: programs that an action starts must have the default.
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._terminated = True

    def _stop_reason(self) -> str | None:
        # A service manager sends SIGTERM to every process of a draining worker, whose runs must go on. So the
        # signal alone stops nothing: the frame decides.
        return self._channel.stop_reason() if self._terminated else None


async def _awaited(value: Awaitable[Any], catcher: OutcomeCatcher) -> None:
    # Within the task: a task whose exception cannot be read never ends.
    with catcher:
        catcher.returned(await value)


def _write_line(line: str) -> None:
    stream = sys.stderr
    if stream is not None and not stream.closed:
        stream.write(line + "\n")


def _die_with(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise WorkerGone


def _restore_pythonpath(value: str | None) -> None:
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


def main(arguments: list[str]) -> int:
    """Serve until the worker is gone."""
    channel = ChildChannel(int(arguments[0]))
    try:
        setup = channel.receive()
        assert isinstance(setup, Setup)
        _die_with(setup.parent_pid)
        _restore_pythonpath(setup.pythonpath)
        for stream in (sys.stdout, sys.stderr):
            # The log of an attempt is UTF-8, whatever the locale.
            cast("TextIOWrapper", stream).reconfigure(encoding="utf-8", errors="backslashreplace")
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(line_formatter("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=setup.log_level, handlers=[handler])
        child = _Child(channel, setup)
        # Importing runs user code: whatever it raises is reported to the worker.
        loading = OutcomeCatcher(result_bytes_max=setup.result_bytes_max, write_log=_write_line)
        with loading:
            child.load(arguments[1:])
            loading.returned(None)
        failed = loading.outcome if isinstance(loading.outcome, Failed) else None
        channel.send(Loaded(failed=failed))
        if failed is not None:
            return 1
        try:
            child.serve()
        finally:
            child.close()
    except WorkerGone:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
