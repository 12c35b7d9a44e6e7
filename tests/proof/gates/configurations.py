"""The configurations that are explored, each about a few questions."""

from collections.abc import Callable
from dataclasses import replace

from tests.proof.gates.definitions import Action, Pool, Rate, Resource, System, Worker
from tests.proof.gates.explorer import Configuration


def plain(alive_max: int) -> Configuration:
    """Two actions as they are today: a queue and the pool, with workers that come and go."""
    return Configuration(
        name="plain",
        system=System(
            actions=(Action(name="a", limit=2), Action(name="b")),
            pools=(Pool(lead=1),),
            workers=(Worker(name="u", concurrency=1), Worker(name="v", concurrency=2)),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3)),
        pausable=(("a",),),
        capacities={"a": (0, 1, 2)},
        restless=("v",),
    )


def resources(alive_max: int) -> Configuration:
    """Three actions share two resources with units; capacities change, a resource is paused."""
    return Configuration(
        name="resources",
        system=System(
            actions=(
                Action(name="a", uses={"cad": 2}),
                Action(name="b", limit=2, uses={"api": 1, "cad": 1}),
                Action(name="c", uses={"api": 2}),
            ),
            resources=(Resource(name="cad", capacity=3, rank=1), Resource(name="api", capacity=2, rank=2)),
            pools=(Pool(order="arrival"),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("c", "", 3)),
        pausable=(("api",),),
        capacities={"cad": (1, 3)},
    )


def totals(alive_max: int) -> Configuration:
    """A limit for each key, one overridden, and a fair total over both keys with weights 2 and 1."""
    return Configuration(
        name="totals",
        system=System(
            actions=(
                Action(
                    name="a", keys=("7", "8"), limit=None, key_limits={"8": 2}, total=2, order="fair",
                    weights={"7": 2},
                ),
            ),
        ),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 3), ("a", "8", 1)),
        pausable=(("a/7",),),
        capacities={"total a": (1, 2), "a/8": (1, 2)},
    )  # fmt: skip


def fair(alive_max: int) -> Configuration:
    """A fair resource between three actions with units 2, 1, 1 and weights 1, 2, 1."""
    return Configuration(
        name="fair",
        system=System(
            actions=(
                Action(name="a", uses={"cad": 2}),
                Action(name="b", uses={"cad": 1}),
                Action(name="c", uses={"cad": 1}),
            ),
            resources=(Resource(name="cad", capacity=2, order="fair", weights={"b": 2}),),
            pools=(Pool(order="arrival"),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("c", "", 3)),
        capacities={"cad": (1, 2)},
        has_batches=False,
    )


def rates(alive_max: int) -> Configuration:
    """The rate of an action and of two resources; an action without a rate in the same pool."""
    return Configuration(
        name="rates",
        system=System(
            actions=(
                Action(name="a", rate=Rate(starts=1, per=3), uses={"api": 1}),
                Action(name="b", uses={"api": 1, "mail": 1}),
                Action(name="c", uses={"api": 1}),
            ),
            resources=(
                Resource(name="api", capacity=9, rank=1, rate=Rate(starts=2, per=3)),
                Resource(name="mail", capacity=9, rank=2, rate=Rate(starts=1, per=4)),
            ),
            pools=(Pool(order="arrival"),),
            workers=(Worker(name="u", concurrency=2),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("c", "", 3)),
        has_batches=False,
    )


def pool(alive_max: int) -> Configuration:
    """A fair pool: `a` and `b` have workers of their own, `c` runs on both; they join and leave."""
    return Configuration(
        name="pool",
        system=System(
            actions=(Action(name="a"), Action(name="b"), Action(name="c", rate=Rate(starts=1, per=2))),
            workers=(
                Worker(name="u", concurrency=1, actions=frozenset({"a", "c"})),
                Worker(name="v", concurrency=1, actions=frozenset({"b", "c"})),
            ),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("c", "", 3)),
        restless=("v",),
    )


def weighted_pool(alive_max: int) -> Configuration:
    """A fair pool in which the actions have weights; it is paused and resumed."""
    return Configuration(
        name="weighted pool",
        system=System(
            actions=(Action(name="a"), Action(name="b", limit=2)),
            pools=(Pool(lead=1, weights={"a": 3}),),
            workers=(Worker(name="u", concurrency=1),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3)),
        pausable=(("pool default",),),
    )


def paused_pools(alive_max: int) -> Configuration:
    """A pool by arrival and a fair one share a resource; each is paused and resumed, a worker leaves one."""
    return Configuration(
        name="paused pools",
        system=System(
            actions=(
                Action(name="a", uses={"cad": 1}),
                Action(name="b"),
                Action(name="g", uses={"cad": 1}, pool="gpu"),
            ),
            resources=(Resource(name="cad", capacity=1),),
            pools=(Pool(order="arrival"), Pool(name="gpu")),
            workers=(
                Worker(name="u", concurrency=1),
                Worker(name="v", concurrency=1, pools=("default", "gpu")),
            ),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3), ("b", "", 2), ("g", "", 3)),
        pausable=(("pool default",), ("pool gpu",)),
        restless=("u",),
    )


def priorities(alive_max: int) -> Configuration:
    """Three priorities at two queues, a total and a fair pool."""
    return Configuration(
        name="priorities",
        system=System(
            actions=(Action(name="a", keys=("7", "8"), limit=1, total=1), Action(name="b")),
            workers=(Worker(name="u", concurrency=1),),
        ),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 1), ("b", "", 2), ("b", "", 1)),
    )


def urgent_share(alive_max: int) -> Configuration:
    """A fair resource, where some executions of both actions are urgent."""
    return Configuration(
        name="urgent share",
        system=System(
            actions=(Action(name="a", uses={"cad": 1}), Action(name="b", uses={"cad": 1})),
            resources=(Resource(name="cad", capacity=1, order="fair", weights={"b": 2}),),
            pools=(Pool(order="arrival"),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 1), ("a", "", 3), ("b", "", 1), ("b", "", 3)),
        has_batches=False,
        has_cancels=False,
    )


def idle_flows(alive_max: int) -> Configuration:
    """A fair resource with a memory of flows that were idle: only a wrong model needs it."""
    fair_resource = urgent_share(alive_max)
    return replace(fair_resource, name="idle flows", requests=(("a", "", 3), ("b", "", 3)), tag_memory=8)


def crossed(alive_max: int) -> Configuration:
    """Two actions that name the same two resources in different orders."""
    return Configuration(
        name="crossed",
        system=System(
            actions=(
                Action(name="a", uses={"cad": 1, "api": 1}),
                Action(name="b", uses={"api": 1, "cad": 1}),
            ),
            resources=(Resource(name="cad", capacity=1, rank=1), Resource(name="api", capacity=1, rank=2)),
            pools=(Pool(order="arrival"),),
        ),
        alive_max=alive_max,
        requests=(("a", "", 3), ("b", "", 3)),
        capacities={"cad": (1, 2)},
    )


def everything(alive_max: int) -> Configuration:
    """Three actions, two keys, two resources with units and weights, a rate, a pool, a pause, changes."""
    return Configuration(
        name="everything",
        system=System(
            actions=(
                Action(name="a", keys=("7", "8"), limit=1, total=1, uses={"cad": 2}),
                Action(name="b", uses={"cad": 1, "api": 1}),
                Action(name="c", rate=Rate(starts=1, per=2)),
            ),
            resources=(
                Resource(name="cad", capacity=3, rank=1, order="fair", weights={"a": 2}),
                Resource(name="api", capacity=1, rank=2),
            ),
            pools=(Pool(order="arrival"),),
            workers=(
                Worker(name="u", concurrency=1),
                Worker(name="v", concurrency=1, actions=frozenset({"b", "c"})),
            ),
        ),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 3), ("b", "", 3), ("c", "", 2)),
        pausable=(("api",),),
        capacities={"cad": (1, 3)},
        restless=("v",),
    )


CONFIGURATIONS: tuple[tuple[Callable[[int], Configuration], int, int], ...] = (
    (plain, 2, 4),
    (resources, 4, 6),
    (crossed, 4, 6),
    (totals, 2, 4),
    (fair, 3, 4),
    (urgent_share, 3, 4),
    (rates, 2, 4),
    (pool, 2, 4),
    (weighted_pool, 4, 6),
    (paused_pools, 2, 3),
    (priorities, 3, 5),
    (everything, 2, 3),
)
"""With the number of live executions in the tests, and in `python -m tests.proof.gates model`."""
