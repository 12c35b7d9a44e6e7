"""Builds the protocol's installation script from the SQL files of `common.sql`.

The files of the folder come first, by name, then those of its subfolders; permissions come last. `_filled`
replaces the placeholders. The comment of the schema holds the hash of the text: an installation that is up
to date is left unchanged.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from turnstile.common.domain.states import sources_of

SCHEMA: Final = "turnstile"
WORKER_ROLE: Final = "turnstile_worker"
"""Database role that may only call `WORKER_FUNCTIONS`. Optional."""
EXECUTOR_ROLE: Final = "turnstile_executor"
"""Database role that may call every function, and read and write rows. Optional."""
SUBMITTER_FUNCTIONS: Final = ("submit", "submission")
"""All that the role `turnstile_submitter` may call."""
WORKER_FUNCTIONS: Final = (
    "exchange",
    "claim",
    "finish",
    "append_logs",
    "report_progress",
    "hand_back",
    "register_worker",
    "renew",
    "schema_revision",
    "start_drain",
    "sign_off",
    "register_actions",
)

LOG_OPERATION: Final = "SELECT turnstile.log_operation($1, $2, $3, $4, $5, $6)"
"""Caller, verb, kind of the subject, subject, before and after, as JSON where they are objects."""

_FOLDER = resources.files("turnstile.common.sql")
_PERMISSIONS = "permissions.sql"
_SOURCES = re.compile(r":sources_of_(\w+)")
_SETTINGS = re.compile(r"^:(settings\w*)$", re.MULTILINE)
_SEARCH_PATH = "SET search_path = public, pg_temp"
_INDEX_LOOKUPS = f"""{_SEARCH_PATH}
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off"""
_SETTINGS_TEXT: Final = {
    "settings": _SEARCH_PATH,
    "settings_for_index_lookups": _INDEX_LOOKUPS,
    "settings_for_index_order": f"{_INDEX_LOOKUPS}\nSET enable_bitmapscan = off",
}
"""SET clauses of a function's header. `00_types.sql` explains what the planner settings are for."""


def protocol_text() -> str:
    """Return the statements of all files, with the placeholders replaced."""
    texts = [_filled(file.read_text(encoding="utf-8")) for file in _sql_files(_FOLDER)]
    return "\n".join([*texts, permissions_text()])


@cache
def protocol_hash() -> str:
    """Return the hash that identifies an installed protocol."""
    return hashlib.sha256(protocol_text().encode()).hexdigest()


def installation_text() -> str:
    """Return one script that replaces any installed protocol with this one."""
    return "\n".join(
        [
            f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE;",
            f"CREATE SCHEMA {SCHEMA};",
            protocol_text(),
            f"COMMENT ON SCHEMA {SCHEMA} IS '{protocol_hash()}';",
        ]
    )


def permissions_text() -> str:
    """Return the statements that grant the services' roles their rights, where these roles exist."""
    return _text(_PERMISSIONS)


def _text(name: str) -> str:
    return _filled((_FOLDER / name).read_text(encoding="utf-8"))


def _sql_files(folder: Traversable) -> Iterator[Traversable]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    yield from (entry for entry in entries if entry.name.endswith(".sql") and entry.name != _PERMISSIONS)
    for entry in entries:
        if entry.is_dir():
            yield from _sql_files(entry)


def _filled(text: str) -> str:
    """Replace the placeholders.

    `:sources_of_<transition>`: the states from which `common.domain.states` allows that transition (P3). A
    started attempt has its state in its slot: the columns of the slot and the number of the attempt guard its
    transitions, and the proofs check them against the same table. `:settings...`: the SET clauses of a
    function. `:worker_functions`, `:submitter_functions`: their names.
    """
    text = _SETTINGS.sub(lambda match: _SETTINGS_TEXT[match.group(1)], text)
    text = _SOURCES.sub(_source_states, text)
    text = text.replace(":submitter_functions", _array(SUBMITTER_FUNCTIONS))
    return text.replace(":worker_functions", _array(WORKER_FUNCTIONS))


def _source_states(match: re.Match[str]) -> str:
    return f"{_array(sorted(sources_of(match.group(1))))}::execution_status[]"


def _array(words: Sequence[str]) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return f"ARRAY[{listed}]"
