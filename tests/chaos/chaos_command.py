"""The command of a run, and the one way in which all actions of a run leave their lines.

In: parameters as JSON on standard input. Out: a line when it starts, one when it stops. It needs nothing but
the standard library.
"""

import json
import os
import sys
import time


def append(event: str, execution_id: int, attempt: int) -> None:
    """Write one line, whole or not at all."""
    line = {
        "event": event,
        "execution_id": execution_id,
        "attempt": attempt,
        "pid": os.getpid(),
        "at_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    }
    file = os.open(os.environ["CHAOS_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def main() -> None:
    """Take as long as the parameters say."""
    parameters = json.load(sys.stdin)
    execution_id, attempt = (int(os.environ[f"TURNSTILE_{name}"]) for name in ("EXECUTION_ID", "ATTEMPT"))
    append("start", execution_id, attempt)
    time.sleep(parameters["seconds"])
    append("stop", execution_id, attempt)
    sys.stdout.write(json.dumps(execution_id))


if __name__ == "__main__":
    main()
