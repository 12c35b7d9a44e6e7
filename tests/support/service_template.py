"""Services that are forked from a process which has already imported their command.

An interpreter takes more than a second of processor time to import what a service needs, and the tests start
hundreds of services. A template imports the command of one service once and forks a process for each order.
The arguments, environment, folder, log and end of that process are its own, and all that follows the imports
is what `python -m` does. The demo, `turnstile dev` and the proofs of chaos start interpreters of their own.
"""

import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

IMPORTED_BY: Final[Mapping[str, Sequence[str]]] = {
    "turnstile.executor.cli": ("turnstile.executor.cli.serve", "turnstile.executor.service"),
    "turnstile.worker.cli": (
        "turnstile.common.http",
        "turnstile.common.lifecycle",
        "turnstile.common.telemetry.tracing",
        "turnstile.worker.health",
        "turnstile.worker.service",
    ),
}
"""What the command `serve` of each module imports when it is called."""
DIES_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--") if sys.platform == "linux" else ()
_ORDER_BYTES_MAX: Final = 1 << 17
_PR_SET_PDEATHSIG: Final = 1
_FILES: Final = range(3, 1 << 16)


class ForkedProcess:
    """A running service: those parts of `asyncio.subprocess.Process` that the tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(ended, self._end)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; return the exit code, or the negative number of the signal that ended it."""
        return await asyncio.shield(self._code)

    def _send(self, number: signal.Signals) -> None:
        # It may have ended, and the template knows it first.
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _end(self) -> None:
        # Empty where the template is dead, with which the kernel killed it.
        self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        self._code.set_result(self.returncode)


class _Template:
    """The process that forks the services of one command."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        command = [sys.executable, "-m", __name__, module, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *command], env=dict(environment), pass_fds=[theirs.fileno()]
            )
        atexit.register(self._close)

    def fork(self, order: Mapping[str, Any], log: int) -> tuple[int, int]:
        """Return the pid of a new process, and a pipe that its exit code can be read from."""
        ended, ends = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [log, ends])
                pid = self._orders.recv(16)
        finally:
            os.close(ends)
        if not pid:
            os.close(ended)
            raise ChildProcessError(f"the process that forks services ended with {self._process.wait()}")
        return int(pid), ended

    def _close(self) -> None:
        self._orders.close()
        self._process.wait()


_templates: dict[str, _Template] = {}


async def fork_service(
    arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path | None, log: int
) -> ForkedProcess:
    """Do what `python -m` with these arguments does, in a process whose imports are done."""
    module, *rest = arguments
    if module not in _templates:
        own = {name: value for name, value in environment.items() if not name.startswith("TURNSTILE_")}
        # Here, as the kernel kills it with the thread that started it.
        _templates[module] = _Template(module, own)
    order = {"arguments": rest, "environment": dict(environment), "folder": str(folder or Path.cwd())}
    return ForkedProcess(*await asyncio.to_thread(_templates[module].fork, order, log))


def _main() -> None:
    """Fork a process for each order; report its pid, and later its exit code. Ends with the test process."""
    module, orders = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    for name in (module, *IMPORTED_BY[module], "uvloop"):
        importlib.import_module(name)
    # Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                pid, ends = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(ends, str(code).encode())
                selector.unregister(key.fileobj)
                os.close(key.fd)
                os.close(ends)
                continue
            order, files, *_ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 2, socket.MSG_CMSG_CLOEXEC)
            if not order:
                return
            log, ends = files
            pid = os.fork()
            if pid == 0:
                selector.close()
                orders.detach()
                _become(module, json.loads(order), log)
                return
            os.close(log)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ends))
            orders.send(str(pid).encode())


def _become(module: str, order: Mapping[str, Any], log: int) -> None:
    """Run the command in this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(_FILES.start, _FILES.stop)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [module, *order["arguments"]]
    paths = [order["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:1] = paths
    importlib.invalidate_caches()
    # All else is read from the environment when a command is called.
    points = importlib.import_module("turnstile.common.crash_points")
    if order_to_die := os.environ.get(points.VARIABLE):
        vars(points)["_countdown"] = points._Countdown(order_to_die)
    importlib.import_module(module).main()


if __name__ == "__main__":
    _main()
