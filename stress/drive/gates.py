"""Changes the gates of a scenario during the load, reads and removes them."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from turnstile.stress.drive.pacing import ScenarioRun, instant
from turnstile.stress.installation import Api, Json, action_path, resource_path
from turnstile.stress.recording import GateRecords, RecordedChange, RecordedDefinition
from turnstile.stress.trace import POOL, action_ref

_SETTLING_MIN_NS = 20_000_000
"""The possible difference of two readings of the database's clock around a commit."""
_FLAT = ("max_concurrent", "max_concurrent_total", "order", "paused", "capacity", "rank", "pool")


class GateChanges:
    """Carries out the changes of a scenario, and measures how long each took."""

    def __init__(self, run: ScenarioRun, api: Api) -> None:
        self._run, self._api = run, api
        self._planned = () if run.scenario.gates is None else run.scenario.gates.changes
        self._longest_ns = 0

    async def make(self) -> None:
        """Make each change when it is due."""
        clock = self._run.clock
        for change in self._planned:
            await self._run.pacing.wait_until(change.at_seconds)
            asked_at = clock.now()
            store = self._api.put if "/keys/" in change.path else self._api.change
            await store(change.path, change.fields)
            self._longest_ns = max(self._longest_ns, clock.now() - asked_at)

    async def records(self, names: tuple[str, ...], since: int) -> GateRecords | None:
        """Read all definitions with their changes since an instant; None: the scenario has no gates."""
        scenario = self._run.scenario
        if scenario.gates is None:
            return None
        actions = {
            ref: await self._recorded(action_path(ref), since, await self._action(ref))
            for ref in map(action_ref, range(scenario.load.actions))
        }
        resources = {
            name: await self._recorded(path, since, _flat(await self._api.read(path)))
            for name, path in ((name, resource_path(name)) for name in scenario.gates.resources)
        }
        return GateRecords(
            names=names,
            actions=actions,
            resources=resources,
            changed=len(self._planned),
            settling_ns=self._longest_ns + _SETTLING_MIN_NS,
        )

    async def pool_record(self, since: int) -> RecordedDefinition:
        """Read the settings of the pool of the stress actions, with their changes since an instant."""
        path = f"pools/{POOL}"
        stored = await self._api.read(path)
        return await self._recorded(
            path, since, {name: stored[name] for name in ("order", "weights", "paused")}
        )

    async def remove(self, plain: Mapping[str, object]) -> None:
        """Give the actions these plain definitions, and delete the settings of keys and the resources."""
        scenario = self._run.scenario
        if scenario.gates is None:
            return
        for number in range(scenario.load.actions):
            path = action_path(action_ref(number))
            await self._api.put(path, plain)
            keys = [key["concurrency_key"] async for key in self._api.listed(f"{path}/keys")]
            for key in keys:
                await self._api.delete(f"{path}/keys/{quote(key, safe='')}")
        for name in scenario.gates.resources:
            await self._api.delete(resource_path(name))

    async def _action(self, ref: str) -> dict[str, Any]:
        stored = await self._api.read(action_path(ref))
        now = _flat(stored) | {"uses": stored["uses"]}
        async for key in self._api.listed(f"{action_path(ref)}/keys"):
            limit = {"max_concurrent": key["max_concurrent"]} if key["has_limit"] else {}
            now[f"keys.{key['concurrency_key']}"] = {"weight": key["weight"]} | limit
        return now

    async def _recorded(self, path: str, since: int, now: Mapping[str, Any]) -> RecordedDefinition:
        """Return a definition with its recorded changes since an instant, the newest first."""
        changes: list[RecordedChange] = []
        async for entry in self._api.listed(f"{path}/changes"):
            at = instant(entry["changed_at"])
            if at < since:
                break
            changes.append(RecordedChange(at=at, old=entry["old"], new=entry["new"]))
        return RecordedDefinition(now=now, changes=tuple(changes))


def _flat(definition: Json) -> dict[str, Any]:
    """Return the fields of a definition with the names of the log of changes."""
    rate = definition.get("rate") or {}
    flat = {name: definition[name] for name in _FLAT if name in definition}
    return flat | {"rate.starts": rate.get("starts"), "rate.per": rate.get("per")}
