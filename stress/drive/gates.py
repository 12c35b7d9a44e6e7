"""Defines the gates of a scenario, changes them during the load, reads and removes them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from turnstile.stress.drive.pacing import Clock, Pacing, instant
from turnstile.stress.installation import Api, Json, action_path, resource_path
from turnstile.stress.recording import GateRecords, RecordedChange, RecordedDefinition
from turnstile.stress.scenario import DefinitionChange, Gates, Scenario
from turnstile.stress.trace import POOL, action_ref

_SETTLING_MIN_NS = 20_000_000
"""The possible difference of two readings of the database's clock around a commit."""
_FLAT = ("max_concurrent", "max_concurrent_total", "order", "paused", "capacity", "rank", "pool")


async def define_resources(api: Api, scenario: Scenario) -> None:
    """Store the resources of a scenario; before its actions, which use them."""
    if scenario.gates is not None:
        for name, fields in scenario.gates.resources.items():
            await api.put(resource_path(name), fields)


async def define_keys(api: Api, scenario: Scenario) -> None:
    """Store the settings of keys; after the actions."""
    if scenario.gates is not None:
        for each in scenario.gates.keys:
            await api.put(each.path, each.fields)


class GateChanges:
    """Carries out the changes of a scenario, and measures how long each took."""

    def __init__(self, api: Api, gates: Gates | None, pacing: Pacing, clock: Clock) -> None:
        self._api, self._pacing, self._clock = api, pacing, clock
        self._planned = () if gates is None else gates.changes
        self._longest_ns = 0

    async def run(self) -> None:
        """Make each change when it is due."""
        for change in self._planned:
            await self._pacing.wait_until(change.at_seconds)
            asked_at = self._clock.now()
            await self._make(change)
            self._longest_ns = max(self._longest_ns, self._clock.now() - asked_at)

    async def _make(self, change: DefinitionChange) -> None:
        if "/keys/" in change.path:
            await self._api.put(change.path, change.fields)
        else:
            await self._api.change(change.path, change.fields)

    async def records(self, scenario: Scenario, names: tuple[str, ...], since: int) -> GateRecords | None:
        """Read all definitions with their changes since an instant; None: the scenario has no gates."""
        if scenario.gates is None:
            return None
        actions = [action_ref(number) for number in range(scenario.load.actions)]
        return GateRecords(
            names=names,
            actions={ref: await self._action(ref, since) for ref in actions},
            resources={name: await self._resource(name, since) for name in scenario.gates.resources},
            changed=len(self._planned),
            settling_ns=self._longest_ns + _SETTLING_MIN_NS,
        )

    async def _action(self, ref: str, since: int) -> RecordedDefinition:
        path = action_path(ref)
        stored = await self._api.read(path)
        now = _flat(stored) | {"uses": stored["uses"]}
        async for key in self._api.listed(f"{path}/keys"):
            limit = {"max_concurrent": key["max_concurrent"]} if key["has_limit"] else {}
            now[f"keys.{key['concurrency_key']}"] = {"weight": key["weight"]} | limit
        return RecordedDefinition(
            now=now, changes=tuple([each async for each in changes_since(self._api, path, since)])
        )

    async def _resource(self, name: str, since: int) -> RecordedDefinition:
        path = resource_path(name)
        now = _flat(await self._api.read(path))
        return RecordedDefinition(
            now=now, changes=tuple([each async for each in changes_since(self._api, path, since)])
        )


async def pool_record(api: Api, since: int) -> RecordedDefinition:
    """Read the settings of the pool of the stress actions, with their changes since an instant."""
    path = f"pools/{POOL}"
    stored = await api.read(path)
    now = {name: stored[name] for name in ("order", "weights", "paused")}
    return RecordedDefinition(
        now=now, changes=tuple([each async for each in changes_since(api, path, since)])
    )


async def changes_since(api: Api, path: str, since: int) -> AsyncIterator[RecordedChange]:
    """Yield the recorded changes of a definition, the newest first."""
    async for entry in api.listed(f"{path}/changes"):
        at = instant(entry["changed_at"])
        if at < since:
            return
        yield RecordedChange(at=at, old=entry["old"], new=entry["new"])


async def remove_gates(api: Api, scenario: Scenario, plain: Mapping[str, object]) -> None:
    """Give the actions these plain definitions, and delete the settings of keys and the resources."""
    if scenario.gates is None:
        return
    async with asyncio.TaskGroup() as tasks:
        for number in range(scenario.load.actions):
            ref = action_ref(number)
            tasks.create_task(_make_plain(api, ref, plain), name=f"plain-{ref}")
    for name in scenario.gates.resources:
        await api.delete(resource_path(name))


async def _make_plain(api: Api, ref: str, plain: Mapping[str, object]) -> None:
    path = action_path(ref)
    await api.put(path, plain)
    keys = [key["concurrency_key"] async for key in api.listed(f"{path}/keys")]
    for key in keys:
        await api.delete(f"{path}/keys/{quote(key, safe='')}")


def _flat(definition: Json) -> dict[str, Any]:
    """Return the fields of a definition with the names of the log of changes."""
    rate = definition.get("rate") or {}
    flat = {name: definition[name] for name in _FLAT if name in definition}
    return flat | {"rate.starts": rate.get("starts"), "rate.per": rate.get("per")}
