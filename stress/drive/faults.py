"""Injects the planned faults of a scenario.

Limits are changed over HTTP, as any operator does; `local` injects every other fault into a private
installation.
"""

import asyncio
from collections.abc import Sequence

from turnstile.stress.drive.pacing import ScenarioRun
from turnstile.stress.installation import Api, action_path
from turnstile.stress.local.faults import LocalSystem
from turnstile.stress.recording import InjectedFault, LimitChange
from turnstile.stress.scenario import FaultKind, PlannedFault
from turnstile.stress.trace import action_ref


class Faults:
    """Injects the faults of one scenario, concurrently where their times overlap."""

    def __init__(self, run: ScenarioRun, api: Api, injector: LocalSystem | None) -> None:
        """Only limits can be changed without an injector."""
        self._run, self._api, self._injector = run, api, injector
        self._left = len(run.scenario.faults)
        self._injected: list[InjectedFault] = []
        self._limit_changes: list[LimitChange] = []
        self._current: list[FaultKind] = []

    @property
    def over(self) -> bool:
        """Whether all faults are over and repaired."""
        return not self._left

    @property
    def note(self) -> str:
        """The current faults, for display."""
        return ", ".join(self._current)

    @property
    def injected(self) -> Sequence[InjectedFault]:
        """The finished faults in order."""
        return sorted(self._injected, key=lambda fault: fault.began_at)

    @property
    def limit_changes(self) -> Sequence[LimitChange]:
        """The changes of limits in the order of their requests."""
        return sorted(self._limit_changes, key=lambda change: change.asked_at)

    async def inject(self, fault: PlannedFault) -> None:
        """Wait until a fault is due, inject it, and return when it is repaired."""
        await self._run.pacing.wait_until(fault.at_seconds)
        self._current.append(fault.kind)
        if fault.kind is FaultKind.CHANGE_LIMIT:
            injected = await self._change_limit(fault)
        else:
            assert self._injector is not None
            injected = await self._injector.inject(fault)
        self._current.remove(fault.kind)
        self._injected.append(injected)
        self._left -= 1

    async def _change_limit(self, fault: PlannedFault) -> InjectedFault:
        changed = await self._set_limit(fault.target, fault.limit)
        await asyncio.sleep(fault.lasting_seconds)
        restored = await self._set_limit(fault.target, self._run.scenario.limit)
        return InjectedFault(
            kind=fault.kind,
            target=action_ref(fault.target),
            began_at=changed.asked_at,
            healed_at=restored.answered_at,
        )

    async def _set_limit(self, action: int, limit: int | None) -> LimitChange:
        asked_at = self._run.clock.now()
        await self._api.change(action_path(action_ref(action)), {"max_concurrent": limit})
        change = LimitChange(action=action, limit=limit, asked_at=asked_at, answered_at=self._run.clock.now())
        self._limit_changes.append(change)
        return change
