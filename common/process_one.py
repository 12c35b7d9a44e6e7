"""The first process of a container: it starts the program, and reaps what nothing else reaps.

The kernel gives every orphan to process 1, and a process that has ended stays as a zombie until its parent
has waited for it. A service does not wait for what its runs leave behind. In: the signals of the container.
Out: the exit code of the program.
"""

import os
import signal
import sys
from typing import Final, NoReturn

_KILLED: Final = 128
"""Exit code of a program that a signal ended, as a shell has it: this plus the signal's number."""
_OF_FAULTS: Final = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
}


def start_below_process_one() -> None:
    """Return in a child process where this one is process 1; elsewhere only return.

    Call it before any thread starts. Process 1 passes its signals on, and exits as the child does.
    """
    if os.getpid() != 1:
        return
    passed = signal.valid_signals() - _OF_FAULTS
    former = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
    child = os.fork()
    if child:
        _serve(child, passed)
    # A group of its own: a Ctrl-C of the terminal would come twice, and a second one ends a service at once.
    os.setpgid(0, 0)
    if sys.__stdin__ is not None and os.isatty(0):
        os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _serve(child: int, passed: set[signal.Signals]) -> NoReturn:
    while True:
        received = signal.sigwait(passed)
        if received != signal.SIGCHLD:
            os.kill(child, received)
            continue
        status = _reap(child)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else _KILLED - code)


def _reap(child: int) -> int | None:
    """Wait for all that has ended; return the status of `child`, if it has."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status
