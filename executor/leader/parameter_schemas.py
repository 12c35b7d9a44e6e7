"""The JSON Schemas that parameters must fit before their request is admitted.

A schema in the definition decides alone. Otherwise parameters have to fit what a live worker derived from its
code; after the last of them has left, what was registered last. A request is refused only by what
counts at that moment, so never for what a worker that has registered can run. It may be admitted by what
counted a second before: then the worker, whose own check has the last word, refuses it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from turnstile.common.domain.errors import Code
from turnstile.common.json_schema import check_schema
from turnstile.executor.leader.records import WorkerRow
from turnstile.executor.leader.registration import VERSIONS_MAX, hashes_of
from turnstile.executor.parameter_check import SchemaChecker

if TYPE_CHECKING:
    from turnstile.executor.leader.turns import Leadership

logger = logging.getLogger(__name__)

_REMEMBERED_SECONDS: Final = 1.0
_ACTIONS_MAX: Final = 10_000

Body = Mapping[str, Any]


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
        definition = lead.definitions.action(ref)
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
            for each in lead.definitions.bodies.get(("code", ref), {}).get("versions", ())
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
    found = sorted({hashes_of(each).get(ref, "") for each in live}) if live else list(stored)[-1:]
    # A worker without a usable schema takes everything.
    if len(found) > VERSIONS_MAX or any(stored.get(each) is None for each in found):
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
