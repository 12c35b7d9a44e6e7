"""`turnstile env`: prints the environment of `compose.yaml`, with secrets that are new each time."""

import re
import secrets
import sys
from pathlib import Path

_TEMPLATE = Path(__file__).with_name("compose.env")
_SECRET_BYTES = 20


def env() -> None:
    """Print an environment file for compose.yaml, with new random secrets.

    Write it once, beside compose.yaml: turnstile env > .env. Databases and brokers keep the passwords with
    which they were started first.
    """
    found: dict[str, str] = {}

    def secret(name: re.Match[str]) -> str:
        return found.setdefault(name[0], secrets.token_hex(_SECRET_BYTES))

    sys.stdout.write(re.sub(r"\{secret\d\}", secret, _TEMPLATE.read_text(encoding="utf-8")))
