"""Random walks of the statements beside the model: repeatable by number, and shortened if they fail."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.proof.gates import configurations
from tests.proof.gates.definitions import Action, Rate, Resource, System
from tests.proof.gates.explorer import Configuration
from tests.proof.gates.twin import Twin, for_statements
from tests.support.protocol import Protocol

Move: TypeAlias = tuple[str, int]

_WEIGHTS: Final = {
    "admit": 14,
    "settle": 9,
    "finish": 2,
    "settle_ended": 3,
    "retry": 2,
    "wake": 3,
    "cancel": 4,
    "expire": 2,
    "reclaim": 2,
    "hand_back": 2,
    "tick": 5,
    "tidy": 1,
    "pause": 2,
    "change_capacity": 3,
    "redefine": 2,
    "cancel_beside_a_settle": 3,
}


@asynccontextmanager
async def rolled_back(protocol: Protocol, seed: int) -> AsyncIterator[None]:
    """Run a walk in a transaction that is rolled back; an AssertionError names its seed."""
    async with protocol.undone():
        try:
            yield
        except AssertionError as broken:
            raise AssertionError(f"walk {seed}: {broken}") from broken


def chain(alive_max: int) -> Configuration:
    """Five actions whose routes overlap in pairs, so that no decision concerns all gates."""
    return Configuration(
        name="chain",
        system=System(
            actions=(
                Action(name="a", uses={"r1": 1, "r2": 1}),
                Action(name="b", uses={"r2": 2, "r3": 1}),
                Action(name="c", uses={"r3": 1, "r4": 2}),
                Action(name="d", uses={"r1": 1}),
                Action(name="e", uses={"r2": 1, "r3": 1}),
            ),
            resources=(
                Resource(name="r1", capacity=2, rank=1),
                Resource(name="r2", capacity=2, rank=2),
                Resource(name="r3", capacity=1, rank=3, order="fair"),
                Resource(name="r4", capacity=3, rank=4),
            ),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("c", "", 3), ("d", "", 3), ("e", "", 3)),
        pausable=(("r2",),),
        capacities={"r2": (1, 2), "r4": (1, 3)},
    )


def broad(alive_max: int) -> Configuration:
    """Limits above one, all priorities, plain actions, keys with weights, shared resources and rates."""
    return Configuration(
        name="broad",
        system=System(
            actions=(
                Action(
                    name="a",
                    keys=("7", "8", "9"),
                    limit=2,
                    key_limits={"9": 3},
                    total=4,
                    order="fair",
                    weights={"7": 3, "9": 16},
                    uses={"cad": 2},
                ),
                Action(name="b", limit=3, uses={"cad": 1, "api": 2}, rate=Rate(starts=3, per=2)),
                Action(name="c", uses={"api": 1}),
                Action(name="plain", limit=2),
                Action(name="free"),
            ),
            resources=(
                Resource(name="cad", capacity=6, rank=1, order="fair", weights={"a": 5}),
                Resource(name="api", capacity=5, rank=2, rate=Rate(starts=4, per=3)),
            ),
        ),
        alive_max=alive_max,
        requests=(
            ("a", "7", 3),
            ("a", "8", 3),
            ("a", "9", 2),
            ("b", "", 3),
            ("b", "", 1),
            ("c", "", 3),
            ("c", "", 5),
            ("plain", "", 3),
            ("plain", "", 1),
            ("plain", "", 5),
            ("free", "", 4),
        ),
        pausable=(("cad",), ("api",)),
        capacities={
            "cad": (1, 6),
            "api": (1, 5),
            "total a": (1, 4),
            "a/9": (1, 3),
            "plain": (1, 2),
            "b": (1, 3),
        },
    )


CONFIGURATIONS: Final = (
    configurations.resources,
    configurations.crossed,
    configurations.totals,
    configurations.fair,
    configurations.urgent_share,
    configurations.rates,
    configurations.priorities,
    configurations.everything,
    chain,
    broad,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A configuration and what happens in it."""

    configuration: Configuration
    moves: tuple[Move, ...]

    def __str__(self) -> str:
        return f"{self.configuration.name}: {' '.join(f'{name}({n})' for name, n in self.moves)}"


def draw(seed: int, steps: int) -> Walk:
    """Return the walk with this number."""
    chance = random.Random(seed)
    configuration = for_statements(CONFIGURATIONS[seed % len(CONFIGURATIONS)](8))
    names = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=steps)
    return Walk(configuration=configuration, moves=tuple((name, chance.randrange(100_000)) for name in names))


async def failure(protocol: Protocol, walk: Walk) -> tuple[str, str] | None:
    """Run a walk in a transaction that is rolled back; return the move that failed, and how."""
    move: Move = ("define", 0)
    async with protocol.undone():
        try:
            twin = Twin(protocol, walk.configuration)
            await twin.define()
            for move in walk.moves:
                if move[0] == "admit" and len(twin.live) >= 24:
                    continue
                await getattr(twin, move[0])(move[1])
        except Exception as error:  # noqa: BLE001  (whatever went wrong is the result)
            return move[0], f"{move[0]}({move[1]}): {type(error).__name__}: {error}"
    return None


async def shortened(protocol: Protocol, walk: Walk) -> Walk:
    """Leave out what is not needed for a failure."""
    first = await failure(protocol, walk)
    assert first is not None
    moves: Sequence[Move] = walk.moves
    size = max(1, len(moves) // 2)
    while size:
        position = 0
        while position < len(moves):
            shorter = (*moves[:position], *moves[position + size :])
            found = Walk(configuration=walk.configuration, moves=tuple(shorter))
            again = await failure(protocol, found)
            if again is not None and again[0] == first[0]:
                moves = shorter
            else:
                position += size
        size //= 2
    return Walk(configuration=walk.configuration, moves=tuple(moves))
