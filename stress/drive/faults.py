"""Breaks what is to be broken, when it is to be broken.

In: the faults of a stage. Out: each as it happened. A limit is changed over HTTP, as any operator does it;
everything else is done by the `Breaker` of a private installation. Next: `installation`.
"""

import asyncio
from collections.abc import Sequence

from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.opening import Limits
from turnstile.stress.drive.progression import Progression
from turnstile.stress.installation import Breaker
from turnstile.stress.names import action_ref
from turnstile.stress.recording import InjectedFault
from turnstile.stress.stage import FaultKind, PlannedFault


class Faults:
    """Carries out the faults of one stage, side by side where their times overlap."""

    def __init__(
        self,
        planned: Sequence[PlannedFault],
        breaker: Breaker | None,
        limits: Limits,
        progression: Progression,
        clock: Clock,
    ) -> None:
        for fault in planned:
            if breaker is None and fault.kind is not FaultKind.CHANGE_LIMIT:
                raise ValueError(f"{fault.kind}: only a private installation may be broken")
        self._left = len(planned)
        self._breaker = breaker
        self._limits = limits
        self._progression = progression
        self._clock = clock
        self._injected: list[InjectedFault] = []
        self._under_way: list[FaultKind] = []

    @property
    def over(self) -> bool:
        """Whether all have happened and are healed."""
        return not self._left

    @property
    def note(self) -> str:
        """What is broken right now, for people."""
        return ", ".join(self._under_way)

    @property
    def injected(self) -> Sequence[InjectedFault]:
        """What has happened, in order."""
        return sorted(self._injected, key=lambda fault: fault.began_at)

    async def carry_out(self, fault: PlannedFault) -> None:
        """Wait until it is time, break, heal."""
        await self._progression.wait_until(fault.at_seconds)
        self._under_way.append(fault.kind)
        if fault.kind is FaultKind.CHANGE_LIMIT:
            injected = await self._change_limit(fault)
        else:
            assert self._breaker is not None
            injected = await self._breaker.inject(fault)
        self._under_way.remove(fault.kind)
        self._injected.append(injected)
        self._left -= 1

    async def _change_limit(self, fault: PlannedFault) -> InjectedFault:
        changed = await self._limits.change(fault.target, fault.limit)
        await asyncio.sleep(fault.lasting_seconds)
        restored = await self._limits.restore(fault.target)
        return InjectedFault(
            kind=fault.kind,
            target=action_ref(fault.target),
            began_at=changed.asked_at,
            healed_at=restored.answered_at,
        )
