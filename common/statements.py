"""Installs the protocol: the files of `common.sql`, in order, into the schema `turnstile`.

`:sources_of_<transition>` in a file becomes the array of states from which that transition may start,
so that the one table in `common.domain.states` guards every write (P3). The schema's comment holds the
text's hash: an installation that is up to date is left alone.
"""

import hashlib
import re
from importlib import resources
from typing import Final

from common.domain.states import sources_of

SCHEMA: Final = "turnstile"
WORKER_ROLE: Final = "turnstile_worker"
"""Where this role exists, it may call `WORKER_FUNCTIONS`, and nothing else."""
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

_SOURCES = re.compile(r":sources_of_(\w+)")


def protocol_text() -> str:
    """Return the statements of all files, source states filled in."""
    files = sorted(
        (f for f in resources.files("common.sql").iterdir() if f.name.endswith(".sql")), key=lambda f: f.name
    )
    return "\n".join(_SOURCES.sub(_source_states, f.read_text(encoding="utf-8")) for f in files)


def protocol_hash() -> str:
    """Return the hash by which an installed protocol is recognised."""
    return hashlib.sha256((protocol_text() + _grants_text()).encode()).hexdigest()


def installation_text() -> str:
    """Return one script that replaces whatever protocol is installed with this one."""
    return "\n".join(
        [
            f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE;",
            f"CREATE SCHEMA {SCHEMA};",
            protocol_text(),
            _grants_text(),
            f"COMMENT ON SCHEMA {SCHEMA} IS '{protocol_hash()}';",
        ]
    )


def _source_states(match: re.Match[str]) -> str:
    labels = ", ".join(f"'{status}'" for status in sorted(sources_of(match.group(1))))
    return f"ARRAY[{labels}]::execution_status[]"


def _grants_text() -> str:
    grants = "\n".join(
        f"EXECUTE (SELECT format('GRANT EXECUTE ON FUNCTION %s TO {WORKER_ROLE}', p.oid::regprocedure)"
        f" FROM pg_proc p WHERE p.pronamespace = '{SCHEMA}'::regnamespace AND p.proname = '{name}');"
        for name in WORKER_FUNCTIONS
    )
    return f"""
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC;
    DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{WORKER_ROLE}') THEN
        GRANT USAGE ON SCHEMA {SCHEMA} TO {WORKER_ROLE};
        {grants}
    END IF;
    END $$;"""
