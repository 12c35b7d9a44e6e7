"""The gates of a run: their definitions, and how these change.

In: a seed and a duration. Out: the changes that define them before the load, and those during it.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change an action, a resource, a pool or the settings of a key."""

    at_seconds: float
    path: str
    fields: Fields
    method: Literal["PATCH", "PUT"] = "PATCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of a load."""

    resources: Mapping[str, Fields]
    actions: Mapping[str, Fields]
    keys: Mapping[str, Fields]
    """By `REF/keys/KEY`."""
    changes: Mapping[str, tuple[Fields, ...]]
    """By path, what a change may set."""
    pools: Mapping[str, Fields] = field(default_factory=dict)

    def defined(self) -> list[Change]:
        """Return the changes that define them; they undo all others."""
        return [
            *(
                Change(at_seconds=0.0, path=f"resources/{name}", fields=fields, method="PUT")
                for name, fields in self.resources.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"actions/{ref}", fields=fields)
                for ref, fields in self.actions.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"actions/{path}", fields=fields, method="PUT")
                for path, fields in self.keys.items()
            ),
            *(
                Change(at_seconds=0.0, path=f"pools/{name}", fields=fields, method="PUT")
                for name, fields in self.pools.items()
            ),
        ]

    def changed(self, rng: random.Random, seconds: float) -> Iterator[Change]:
        """Yield changes for this long, in the order of their time: of each path before any comes twice.

        A pause is soon over.
        """
        now = rng.uniform(2.0, 6.0)
        paths: list[str] = []
        while self.changes and now < seconds:
            paths = paths or rng.sample(sorted(self.changes), len(self.changes))
            path = paths.pop()
            fields = rng.choice(self.changes[path])
            method: Literal["PATCH", "PUT"] = "PUT" if "/keys/" in path else "PATCH"
            yield Change(at_seconds=round(now, 2), path=path, fields=fields, method=method)
            if fields.get("paused"):
                now += rng.uniform(0.5, 2.5)
                yield Change(at_seconds=round(now, 2), path=path, fields={"paused": False})
            # Fair shares and the order are compared between changes.
            now += rng.uniform(1.0, 12.0)


def numbers_of_gates(gates: Gates) -> dict[str, int | None]:
    """Return the limit of each action and the capacity of each resource, as `drain` compares them."""
    return {
        **{f"resource {name}": fields["capacity"] for name, fields in gates.resources.items()},
        **{ref: fields["max_concurrent"] for ref, fields in gates.actions.items()},
    }
