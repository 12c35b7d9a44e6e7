"""The command of a run: `python -m tests.proof.chaos.command`.

In: parameters as JSON on standard input. Out: lines from its start to its stop; the execution's id.
"""

import json
import os
import sys
import time

from tests.proof.chaos.record import note_seen, note_start, spells


def main() -> None:
    """Take as long as the parameters say."""
    parameters = json.load(sys.stdin)
    execution_id, attempt = (int(os.environ[f"TURNSTILE_{name}"]) for name in ("EXECUTION_ID", "ATTEMPT"))
    note_start(execution_id, attempt)
    for spell in spells(parameters["seconds"]):
        time.sleep(spell)
        note_seen(execution_id, attempt)
    sys.stdout.write(json.dumps(execution_id))


if __name__ == "__main__":
    main()
