"""The command of a run: `python -m tests.chaos.command`.

In: parameters as JSON on standard input. Out: a line when it starts, one when it stops; the execution's id.
"""

import json
import os
import sys
import time

from tests.chaos.record import note_start, note_stop


def main() -> None:
    """Take as long as the parameters say."""
    parameters = json.load(sys.stdin)
    execution_id, attempt = (int(os.environ[f"TURNSTILE_{name}"]) for name in ("EXECUTION_ID", "ATTEMPT"))
    note_start(execution_id, attempt)
    time.sleep(parameters["seconds"])
    note_stop(execution_id, attempt)
    sys.stdout.write(json.dumps(execution_id))


if __name__ == "__main__":
    main()
