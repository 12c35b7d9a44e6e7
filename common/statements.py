"""Installs the protocol: the files of `common.sql`, in order, into the schema `turnstile`.

`:sources_of_<transition>` in a file becomes the array of states from which that transition may start,
so that the one table in `common.domain.states` guards every write (P3). The schema's comment holds the
text's hash: an installation that is up to date is left alone.
"""

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Final

from turnstile.common.domain.states import sources_of

SCHEMA: Final = "turnstile"
WORKER_ROLE: Final = "turnstile_worker"
"""Where this role exists, it may call `WORKER_FUNCTIONS`, and nothing else."""
EXECUTOR_ROLE: Final = "turnstile_executor"
"""Where this role exists, it may call every function, and read and write rows."""
WORKER_FUNCTIONS: Final = (
    "claim",
    "finish",
    "append_logs",
    "hand_back",
    "register_worker",
    "renew",
    "sign_off",
    "register_actions",
)

_GRANTS = resources.files("turnstile.common.sql") / "90_grants.sql"
_SOURCES = re.compile(r":sources_of_(\w+)")


def protocol_text() -> str:
    """Return the statements of all files, with what they leave open filled in."""
    files = sorted(
        (f for f in resources.files("turnstile.common.sql").iterdir() if f.name.endswith(".sql")),
        key=lambda f: f.name,
    )
    return "\n".join(_filled(f.read_text(encoding="utf-8")) for f in files)


def protocol_hash() -> str:
    """Return the hash by which an installed protocol is recognised."""
    return hashlib.sha256(protocol_text().encode()).hexdigest()


def installation_text() -> str:
    """Return one script that replaces whatever protocol is installed with this one."""
    return "\n".join(
        [
            f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE;",
            f"CREATE SCHEMA {SCHEMA};",
            protocol_text(),
            f"COMMENT ON SCHEMA {SCHEMA} IS '{protocol_hash()}';",
        ]
    )


def grants_text() -> str:
    """Return the statements that give the services' roles their rights, where there are such roles."""
    return _filled(_GRANTS.read_text(encoding="utf-8"))


def _filled(text: str) -> str:
    return _SOURCES.sub(_source_states, text).replace(":worker_functions", _array(WORKER_FUNCTIONS))


def _source_states(match: re.Match[str]) -> str:
    return f"{_array(sorted(sources_of(match.group(1))))}::execution_status[]"


def _array(words: Sequence[str]) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return f"ARRAY[{listed}]"
