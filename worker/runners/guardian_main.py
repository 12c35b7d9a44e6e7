"""The guardian process: reads `+<group>` and `-<group>`; when its input ends, kills the groups still noted.

It runs with the standard library alone and imports nothing of this project.
"""

import os
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Keep the list until `lines` end."""
    # It outlives a signal meant for the worker's whole service: the closing of the pipe is its only order.
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


if __name__ == "__main__":
    main(sys.stdin)
