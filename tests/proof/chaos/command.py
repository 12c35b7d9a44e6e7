"""The command action of a run: reads its parameters as JSON from standard input."""

import json
import os
import sys

from tests.proof.run_log import log_while_blocking


def main() -> None:
    """Run for as long as the parameters say; print the execution's id."""
    execution_id, attempt = (int(os.environ[f"TURNSTILE_{name}"]) for name in ("EXECUTION_ID", "ATTEMPT"))
    log_while_blocking(execution_id, attempt, json.load(sys.stdin)["seconds"])
    sys.stdout.write(json.dumps(execution_id))


if __name__ == "__main__":
    main()
