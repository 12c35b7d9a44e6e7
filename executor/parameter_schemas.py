"""Refuses requests whose parameters do not fit the schemas of their action, before anything is stored.

In: requests to be admitted; the schemas, read again each second if they have changed. Out: refusals. A
request is refused only by schemas that were read after it arrived, so it is never refused for what a worker
that has registered can run. It may be admitted by schemas a second old: then the worker refuses it.

A schema in the definition decides alone. Otherwise parameters have to fit what one of the live workers
derived from its code; after the last of them has left, what was registered last.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import asyncpg
from pydantic_core import from_json

from turnstile.common.batcher import in_steps
from turnstile.common.domain.errors import Code, Unavailable
from turnstile.common.json_schema import check_schema
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.parameter_check import SchemaChecker
from turnstile.executor.protocol import CheckedAction, ExecutorProtocol
from turnstile.executor.results import Admission, Rejected

logger = logging.getLogger(__name__)

_REFRESH_SECONDS: Final = 1.0
_DERIVED_MAX: Final = 8
"""With more versions of the code of one action at once, the workers alone check its parameters."""


class ParameterSchemas:
    """The schemas of all actions. Safe to share between tasks."""

    def __init__(self, protocol: ExecutorProtocol) -> None:
        self._protocol = protocol
        self._reading = asyncio.Lock()
        self._version: str | None = None
        self._actions: Mapping[str, CheckedAction] = {}
        self._contents: dict[str, Any] = {}
        self._compiled: dict[str, SchemaChecker | None] = {}
        self._not_read = Episodes(logger, "schemas_not_read")

    async def run(self) -> NoReturn:
        """Read changes until cancelled."""
        while True:
            try:
                await self.refresh()
                self._not_read.works("schemas")
            except (Unavailable, asyncpg.PostgresError) as error:
                self._not_read.failed("schemas", reason=str(error))
            await asyncio.sleep(_REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read what has changed. Raises Unavailable."""
        async with self._reading:
            read = await self._protocol.read_schemas(self._version, self._contents.keys())
            if read is None:
                return
            contents = {**self._contents, **read.contents}
            named = {key for action in read.actions for key in _keys(action)}
            self._contents = {key: contents[key] for key in named if key in contents}
            self._compiled = {key: checker for key, checker in self._compiled.items() if key in named}
            self._actions = {action.ref: action for action in read.actions}
            self._version = read.version

    async def refusals(self, admissions: Sequence[Admission]) -> dict[int, Rejected]:
        """Return the refusals of those that do not fit, by index. Raises Unavailable."""
        if self._version is None:
            await self.refresh()
        doubted = await self._invalid_among(admissions, range(len(admissions)))
        if not doubted:
            return {}
        await self.refresh()
        doubted = await self._invalid_among(admissions, doubted)
        if not doubted:
            return {}
        # A copy of an admitted request gets that execution, whatever the schema is now.
        requests, deliveries = await self._protocol.known_keys(
            [key for index in doubted if (key := admissions[index].idempotency_key) is not None],
            [copy for index in doubted if (copy := admissions[index].delivery_key) is not None],
        )
        return {
            index: self._refusal(admissions[index])
            async for index in in_steps(doubted)
            if admissions[index].idempotency_key not in requests
            and admissions[index].delivery_key not in deliveries
        }

    async def _invalid_among(self, admissions: Sequence[Admission], indices: Iterable[int]) -> list[int]:
        return [index async for index in in_steps(indices) if self._is_invalid(admissions[index])]

    def _is_invalid(self, admission: Admission) -> bool:
        action = self._actions.get(admission.action_ref)
        if action is None or len(action.derived) > _DERIVED_MAX:
            return False
        checkers = [self._checker(key, action.ref) for key in _keys(action)]
        if None in checkers:
            return False
        parameters = from_json(admission.parameters_json)
        return not any(checker is not None and checker.fits(parameters) for checker in checkers)

    def _refusal(self, admission: Admission) -> Rejected:
        action = self._actions[admission.action_ref]
        parameters = from_json(admission.parameters_json)
        # Of several versions: the one that the parameters almost fit.
        checkers = [self._checker(key, action.ref) for key in _keys(action)]
        found = [checker.reasons(parameters) for checker in checkers if checker is not None]
        reasons = min(
            filter(None, found), key=len, default=["parameters: do not fit the schema of the action"]
        )
        remedy = f"to see what it takes: executor actions show {action.ref}"
        return Rejected(code=Code.INVALID_PARAMETERS, message=f"{'; '.join(reasons)}; {remedy}")

    def _checker(self, key: str, ref: str) -> SchemaChecker | None:
        """Return a compiled schema, or None where it cannot be used: then everything fits."""
        if key not in self._compiled:
            self._compiled[key] = None
            schema = self._contents.get(key, {})
            try:
                # Who writes to the database may not have checked it.
                check_schema(schema)
                self._compiled[key] = SchemaChecker(schema, is_converted=key.startswith("derived"))
            except ValueError as error:
                logger.warning("schema_unusable", extra={"action_ref": ref, "reason": str(error)})
        return self._compiled[key]


def _keys(action: CheckedAction) -> Sequence[str]:
    return action.derived if action.given is None else (action.given,)
