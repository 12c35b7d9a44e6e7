"""What a worker registers with its hello: pools, actions that the installation lacks, schemas of its code.

In: a hello, and what is stored. Out: the hello without the schemas, the welcome that answers it, inputs of
the queue manager. What exists is never changed: the welcome says what differs, and what was refused and why.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pydantic_core import to_json

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.errors import Code, Refusal
from turnstile.common.requests import read_model
from turnstile.common.schedules import ScheduleDefinition
from turnstile.common.worker_protocol import Hello, Welcome
from turnstile.executor.leader.commands import WORKER, Body, Definitions, input_of
from turnstile.executor.leader.records import DefinitionRow, WorkerRow
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.state import State

logger = logging.getLogger(__name__)

VERSIONS_MAX: Final = 8
"""With more versions of the code of one action at once, the workers alone check its parameters."""
_POOLS_MAX: Final = 100
"""Of one worker: its account may name any."""
_SCHEDULES_MAX: Final = 1000
"""Of one worker."""
_SHOWN_MAX: Final = 10
_REFUSED_CHARS_MAX: Final = 500
_SCHEMA_BYTES_MAX: Final = 128 * 1024
_HASH_BYTES: Final = 12


def register(
    hello: Hello, definitions: Definitions, sessions: Sessions, state: State
) -> tuple[Hello, Welcome, list[Input]]:
    """Store what the installation lacks; return the hello to remember, its answer, and what was defined."""
    rows = [row for name in hello.pools[:_POOLS_MAX] if (row := definitions.name_pool(name)) is not None]
    refused: list[str] = []
    for given in hello.definitions:
        ref = given.get("ref")
        if isinstance(ref, str) and (("action", ref) in definitions.bodies or ref in state.actions):
            continue
        try:
            rows.append(_registered(definitions, ref, given))
        except Refusal as refusal:
            fields = {"action_ref": str(ref)[:200], "worker": hello.name, "reason": refusal.message}
            logger.warning("definition_refused", extra=fields)
            refused.append(f"action {str(ref)[:200]!r}: {refusal.message}"[:_REFUSED_CHARS_MAX])
    refused += _schedules_registered(definitions, hello)
    stored = [
        body
        for given in hello.definitions
        if (body := definitions.action(str(given.get("ref"))))
        and any(body.get(name) != value for name, value in given.items())
    ]
    welcome = Welcome(stored=tuple(stored), refused=tuple(refused[:_SHOWN_MAX]))
    inputs = [input_of(row) for row in rows]
    return _with_code_stored(hello, definitions, sessions, state.now), welcome, inputs


def _registered(definitions: Definitions, ref: Any, given: Body) -> DefinitionRow:
    if not isinstance(ref, str):
        raise Refusal(Code.INVALID_MESSAGE, "ref: expected text")
    if given.get("parameters_schema") is not None or given.get("result_schema") is not None:
        # A worker's schemas are those of its code; only an operator gives one to the action.
        raise Refusal(Code.INVALID_MESSAGE, "parameters_schema, result_schema: only an operator sets them")
    body = read_model(ActionDefinition, dict(given)).model_dump(mode="json")
    definitions.check_uses(ref, body, {})
    return definitions.store("action", ref, body, WORKER)


def _schedules_registered(definitions: Definitions, hello: Hello) -> Iterator[str]:
    """Store the schedules that the installation lacks; yield why others were refused."""
    for given in hello.schedules[:_SCHEDULES_MAX]:
        name = str(given.get("name"))[:200]
        if ("schedule", name) in definitions.bodies:
            continue
        try:
            body = read_model(ScheduleDefinition, dict(given)).stored()
            definitions.check_schedule(body)
            definitions.store("schedule", name, body, WORKER)
        except Refusal as refusal:
            fields = {"schedule": name, "worker": hello.name, "reason": refusal.message}
            logger.warning("definition_refused", extra=fields)
            yield f"schedule {name!r}: {refusal.message}"[:_REFUSED_CHARS_MAX]


def _schedules_that_differ(hello: Hello, definitions: Definitions) -> Iterator[str]:
    """Yield what this worker logs with the answer, for each of its schedules that is stored otherwise."""
    for given in hello.schedules[:_SCHEDULES_MAX]:
        name = str(given.get("name"))[:200]
        stored = definitions.bodies.get(("schedule", name))
        if stored is not None and {**stored, "paused": False} != {**given, "paused": False}:
            command = f"executor schedules put {name}"
            yield f"WARNING schedule_differs schedule={name} to_change_it='{command}'"


def _with_code_stored(hello: Hello, definitions: Definitions, sessions: Sessions, at: float) -> Hello:
    """Store what a worker derived from its code; return its hello with hashes in place of the schemas.

    What is too large is left out, which means that everything fits. Warnings that need stored definitions are
    added to the notes of its start.
    """
    given = hello.about.get("schemas")
    own = hello.sender.worker_id
    others = [hashes_of(each.row) for each in sessions.all() if each.row.worker_id != own]
    hashes: dict[str, str] = {}
    for each in given if isinstance(given, list) else ():
        ref, version = _version(each)
        if ref is None or version is None or ("action", ref) not in definitions.bodies:
            continue
        hashes[ref] = version["hash"]
        stored = definitions.bodies.get(("code", ref), {}).get("versions", [])
        if stored and stored[-1]["hash"] == version["hash"]:
            continue
        used = {found[ref] for found in others if ref in found}
        older = [old for old in stored if old["hash"] in used and old["hash"] != version["hash"]]
        registered_at = datetime.fromtimestamp(at, UTC).isoformat()
        versions = [*older[1 - VERSIONS_MAX :], version | {"registered_at": registered_at}]
        definitions.store_code(ref, {"versions": versions})
    about = {**hello.about, "schemas": hashes}
    if warnings := [*_pools_without_actions(hello, definitions), *_schedules_that_differ(hello, definitions)]:
        notes = hello.about.get("start_notes")
        about["start_notes"] = [*(notes if isinstance(notes, list) else ()), *warnings]
    return replace(hello, about=about)


def _pools_without_actions(hello: Hello, definitions: Definitions) -> Iterator[str]:
    """Yield what this worker logs with the answer, for each of its pools in which none of its actions is."""
    bodies = [definitions.bodies.get(("action", ref)) for ref in hello.actions or ()]
    pools = {body.get("pool", "default") for body in bodies if body is not None}
    for pool in hello.pools:
        if pools and pool not in pools:
            yield f"WARNING pool_without_actions pool={pool} pools_of_its_actions={','.join(sorted(pools))}"


def _version(given: Any) -> tuple[str | None, dict[str, Any] | None]:
    if not isinstance(given, dict) or not isinstance(given.get("ref"), str):
        return None, None
    content = {name: given.get(name) for name in ("parameters", "result")}
    texts = [to_json(each) for each in content.values()]
    if max(map(len, texts)) > _SCHEMA_BYTES_MAX:
        return given["ref"], None
    named = hashlib.blake2b(b"|".join(texts), digest_size=_HASH_BYTES).hexdigest()
    return given["ref"], {"hash": named, **content}


def hashes_of(worker: WorkerRow) -> Mapping[str, str]:
    """Return the versions of the code that a worker has, by action."""
    found = worker.about.get("schemas")
    return found if isinstance(found, dict) else {}
