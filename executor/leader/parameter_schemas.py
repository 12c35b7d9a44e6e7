"""The JSON Schemas that parameters must fit before their request is admitted.

A schema in the definition decides alone. Otherwise parameters have to fit what a live worker derived from its
code; after the last of them has left, what was registered last. A request is refused only by what
counts at that moment, so never for what a worker that has registered can run. It may be admitted by what
counted a second before: then the worker, whose own check has the last word, refuses it.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from turnstile.common.domain.errors import Code
from turnstile.common.json_schema import check_schema
from turnstile.common.worker_protocol import Hello
from turnstile.executor.leader.commands import Definitions
from turnstile.executor.leader.records import WorkerRow
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.parameter_check import SchemaChecker

if TYPE_CHECKING:
    from turnstile.executor.leader.turns import Leadership

logger = logging.getLogger(__name__)

_REMEMBERED_SECONDS: Final = 1.0
_VERSIONS_MAX: Final = 8
"""With more versions of the code of one action at once, the workers alone check its parameters."""
_SCHEMA_BYTES_MAX: Final = 128 * 1024
_HASH_BYTES: Final = 12
_ACTIONS_MAX: Final = 10_000

Body = Mapping[str, Any]


def register_code(hello: Hello, definitions: Definitions, sessions: Sessions, at: float) -> Hello:
    """Store what a worker derived from its code; return its hello with hashes in place of the schemas.

    What is too large is left out, which means that everything fits. Warnings that need stored definitions are
    added to the notes of its start.
    """
    given = hello.about.get("schemas")
    own = hello.sender.worker_id
    others = [_hashes(each.row) for each in sessions.all() if each.row.worker_id != own]
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
        versions = [*older[1 - _VERSIONS_MAX :], version | {"registered_at": registered_at}]
        definitions.store_code(ref, {"versions": versions})
    about = {**hello.about, "schemas": hashes}
    if warnings := list(_pools_without_actions(hello, definitions)):
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


def _hashes(worker: WorkerRow) -> Mapping[str, str]:
    found = worker.about.get("schemas")
    return found if isinstance(found, dict) else {}


@dataclass(slots=True)
class _Judges:
    """What the parameters of one action must fit: one of these; none: everything fits."""

    definition: Body
    versions: tuple[str, ...] | None
    """Of the code; None: the schema of the definition, or none."""
    checkers: Sequence[SchemaChecker]
    until: float


class ParameterSchemas:
    """The schemas of all actions, as the leader remembers them. Each is compiled once."""

    def __init__(
        self, leadership: Callable[[], "Leadership | None"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._leadership, self._clock = leadership, clock
        self._of: Leadership | None = None
        self._judges: dict[str, _Judges] = {}

    def refusal_of(self, action_ref: str, parameters: Any) -> tuple[Code, str] | None:
        """Return why parameters fit none of the schemas, or None where they fit one or there is none."""
        lead = self._leadership()
        if lead is not self._of:
            self._of, self._judges = lead, {}
        if lead is None or _fits(parameters, self._known(lead, action_ref)):
            return None
        return refusal_of_parameters(parameters, self._known(lead, action_ref, is_exact=True), action_ref)

    def _known(self, lead: "Leadership", ref: str, *, is_exact: bool = False) -> Sequence[SchemaChecker]:
        definition = lead.admission.definitions.action(ref)
        if not definition:
            return ()
        known = self._judges.get(ref)
        if known is not None and known.definition is definition:
            if known.versions is None or (self._clock() < known.until and not is_exact):
                return known.checkers
        else:
            known = None
        judges = self._judges_of(lead, definition, ref, known)
        if len(self._judges) >= _ACTIONS_MAX:
            self._judges.clear()
        self._judges[ref] = judges
        return judges.checkers

    def _judges_of(self, lead: "Leadership", definition: Body, ref: str, known: _Judges | None) -> _Judges:
        given, until = definition.get("parameters_schema"), self._clock() + _REMEMBERED_SECONDS
        if given is not None:
            return _Judges(definition, None, _compiled([given], ref, is_converted=False), until)
        if definition.get("runner", "python") != "python":
            return _Judges(definition, None, (), until)
        stored = {
            each["hash"]: each["parameters"]
            for each in lead.admission.definitions.bodies.get(("code", ref), {}).get("versions", ())
        }
        workers = [each.row for each in lead.sessions.all() if not each.is_lost]
        versions = _versions(definition, ref, workers, stored)
        if known is not None and known.versions == versions:
            return replace(known, until=until)
        schemas = [stored[each] for each in versions]
        return _Judges(definition, versions, _compiled(schemas, ref, is_converted=True), until)


def _versions(
    definition: Body, ref: str, workers: Iterable[WorkerRow], stored: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the versions of the code that count, by their hashes; empty: everything fits."""
    live = [each for each in workers if _takes(each, definition, ref)]
    found = sorted({_hashes(each).get(ref, "") for each in live}) if live else list(stored)[-1:]
    # A worker without a usable schema takes everything.
    if len(found) > _VERSIONS_MAX or any(stored.get(each) is None for each in found):
        return ()
    return tuple(found)


def _takes(worker: WorkerRow, definition: Body, ref: str) -> bool:
    """Return whether a worker takes new executions of an action."""
    has_code = definition.get("entrypoint") is not None or worker.actions is None or ref in worker.actions
    return has_code and not worker.is_draining and definition.get("pool", "default") in worker.pools


def _compiled(schemas: Iterable[Any], ref: str, *, is_converted: bool) -> Sequence[SchemaChecker]:
    """Compile schemas; where one cannot be used, everything fits."""
    found = []
    for schema in schemas:
        try:
            # A worker's account may register anything.
            check_schema(schema)
            found.append(SchemaChecker(schema, is_converted=is_converted))
        except ValueError as error:
            logger.warning("schema_unusable", extra={"action_ref": ref, "reason": str(error)})
            return ()
    return found


def _fits(parameters: Any, checkers: Sequence[SchemaChecker]) -> bool:
    return not checkers or any(checker.fits(parameters) for checker in checkers)


def refusal_of_parameters(
    parameters: Any, checkers: Sequence[SchemaChecker], ref: str
) -> tuple[Code, str] | None:
    """Return why parameters fit none of the schemas, or None where they fit one or there is none."""
    if _fits(parameters, checkers):
        return None
    # Of several versions: the one that the parameters almost fit.
    found: Iterator[list[str]] = filter(None, (checker.reasons(parameters) for checker in checkers))
    reasons = min(found, key=len, default=["parameters: do not fit the schema of the action"])
    remedy = f"to see what it takes: executor actions show {ref}"
    return Code.INVALID_PARAMETERS, f"{'; '.join(reasons)}; {remedy}"
