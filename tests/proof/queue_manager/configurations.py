"""The systems that are explored, each about a few questions, and what may happen to each at any moment."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    DefineAction,
    DefinePool,
    DefineResource,
    DeleteAction,
    Input,
    SetKey,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.retries import RetryPolicy

RETRY = RetryPolicy(max_attempts=2, delay_seconds=1, factor=1, jitter=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A system, and what may happen to it at any moment."""

    name: str
    definitions: tuple[Input, ...]
    workers: tuple[WorkerChanged, ...]
    alive_max: int
    """Nothing is admitted while so many executions have not ended."""
    requests: tuple[tuple[str, str, int], ...]
    """Action, concurrency key and priority of each request that may arrive."""
    switches: tuple[tuple[Input, ...], ...] = ()
    """Values between which something changes; the first ones are in force at the beginning."""
    has_cancels: bool = True
    has_returns: bool = True
    has_failures: bool = False
    has_starts: bool = False
    has_overdues: bool = False
    """The leader may end an attempt that ran longer than its timeout."""
    has_batches: bool = True
    has_loads: bool = True
    """A new leader may go on with what it loads."""
    ttl_seconds: float | None = None
    delay_seconds: float | None = None
    """Requests may also be delayed by this."""
    run_seconds: float | None = None
    """How long attempts run that end; None: their workers do not say."""
    tick_seconds: float = 0
    """Time passes in steps of this; 0: it stands still."""


def worker(
    name: str, concurrency: int = 1, *, pools: str = "default", actions: str | None = None
) -> WorkerChanged:
    return WorkerChanged(
        worker_id=name,
        pools=frozenset(pools.split()),
        concurrency=concurrency,
        actions=None if actions is None else frozenset(actions.split()),
    )


def define(definition: Action | Resource | Pool) -> Input:
    """Return the input that stores a definition."""
    match definition:
        case Action():
            return DefineAction(action=definition)
        case Resource():
            return DefineResource(resource=definition)
        case Pool():
            return DefinePool(pool=definition)


def _defined(*definitions: Action | Resource | Pool) -> tuple[Input, ...]:
    return tuple(map(define, definitions))


def _capacities(resource: Resource, *capacities: int) -> tuple[Input, ...]:
    return _defined(*(replace(resource, capacity=capacity) for capacity in capacities))


def _paused_or_not(definition: Action | Resource | Pool) -> tuple[Input, ...]:
    return _defined(definition, replace(definition, paused=True))


def _comes_and_goes(w: WorkerChanged) -> tuple[Input, ...]:
    return w, replace(w, is_taking=False), WorkerGone(worker_id=w.worker_id)


def _here_or_gone(w: WorkerChanged) -> tuple[Input, ...]:
    return w, WorkerGone(worker_id=w.worker_id)


def _by_arrival(*names: str) -> tuple[Pool, ...]:
    """Pools without tags: fairness is what other systems are about, and each tag doubles the states."""
    return tuple(Pool(name=name, order="arrival") for name in names)


def _requests(text: str) -> tuple[tuple[str, str, int], ...]:
    return tuple((each, "", 3) for each in text.split())


def plain(alive_max: int) -> Configuration:
    """Two plain actions; a worker comes, drains and goes; an action is paused and its limit changes."""
    a = Action(ref="a", max_concurrent=2, retry=RETRY)
    u, v = worker("u"), worker("v", 2)
    return Configuration(
        name="plain",
        definitions=_defined(a, Action(ref="b", on_worker_lost="abandon")),
        workers=(u, v),
        alive_max=alive_max,
        requests=_requests("a b"),
        switches=(
            _defined(a, replace(a, max_concurrent=1), replace(a, paused=True)),
            _comes_and_goes(v),
        ),
        has_failures=True,
        tick_seconds=1,
    )


def handover(alive_max: int) -> Configuration:
    """The same two actions without failures and time: few enough states to see all of them."""
    larger = plain(alive_max)
    return replace(
        larger,
        name="handover",
        definitions=(*_defined(*_by_arrival("default")), *larger.definitions),
        switches=(larger.switches[0], _here_or_gone(worker("v", 2))),
        has_failures=False,
        has_returns=False,
        has_batches=False,
        tick_seconds=0,
    )


def crews(alive_max: int) -> Configuration:
    """Two workers of one pool, one of which serves only `a`."""
    u, v = worker("u", actions="a"), worker("v")
    return Configuration(
        name="crews",
        definitions=_defined(
            Resource(name="cad", capacity=1),
            *_by_arrival("default"),
            Action(ref="a"),
            Action(ref="b"),
            Action(ref="c", uses=(Use(resource="cad"),)),
        ),
        workers=(u, v),
        alive_max=alive_max,
        requests=_requests("a b c"),
        switches=(_capacities(Resource(name="cad", capacity=1), 1, 0), _comes_and_goes(u)),
    )


def keys(alive_max: int) -> Configuration:
    """A limit for each key, one of its own, and a total by arrival."""
    a = Action(ref="a", max_concurrent=1, max_concurrent_total=2)
    two = KeySettings(has_limit=True, max_concurrent=2)
    return Configuration(
        name="keys",
        definitions=_defined(a),
        workers=(worker("u", 3),),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 3), ("a", "8", 1)),
        switches=(
            _defined(a, replace(a, max_concurrent_total=1)),
            tuple(SetKey(action_ref="a", key="8", settings=each) for each in (None, two)),
        ),
    )


def fair_total(alive_max: int) -> Configuration:
    """Three keys under a fair total of one, with weights 2, 1, 1."""
    a = Action(ref="a", max_concurrent_total=1, order="fair")
    return Configuration(
        name="fair total",
        definitions=(define(a), SetKey(action_ref="a", key="7", settings=KeySettings(weight=2))),
        workers=(worker("u", 3),),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 3), ("a", "9", 3)),
        switches=(_paused_or_not(a),),
        has_returns=False,
        has_batches=False,
    )


def resources(alive_max: int) -> Configuration:
    """Three actions share two resources with units; capacities change, a resource is paused."""
    cad, api = Resource(name="cad", capacity=3, rank=1), Resource(name="api", capacity=2, rank=2)
    return Configuration(
        name="resources",
        definitions=_defined(
            cad,
            api,
            *_by_arrival("default"),
            Action(ref="a", uses=(Use(resource="cad", units=2),)),
            Action(ref="b", max_concurrent=2, uses=(Use(resource="api"), Use(resource="cad"))),
            Action(ref="c", uses=(Use(resource="api", units=2),)),
        ),
        workers=(worker("u", 3),),
        alive_max=alive_max,
        requests=_requests("a b c"),
        switches=(_capacities(cad, 3, 1), _paused_or_not(api)),
    )


def crossed(alive_max: int) -> Configuration:
    """Two actions use the same two resources and list them in opposite order, in two crews."""
    x, y = Resource(name="x", capacity=1), Resource(name="y", capacity=1)
    return Configuration(
        name="crossed",
        definitions=_defined(
            x,
            y,
            *_by_arrival("default", "gpu"),
            Action(ref="a", uses=(Use(resource="x"), Use(resource="y"))),
            Action(ref="b", uses=(Use(resource="y"), Use(resource="x")), pool="gpu"),
            Action(ref="c", uses=(Use(resource="y"),)),
        ),
        workers=(worker("u", 2), worker("v", 1, pools="gpu")),
        alive_max=alive_max,
        requests=_requests("a b c"),
        switches=(_comes_and_goes(worker("u", 2)),),
    )


def fair_resource(alive_max: int) -> Configuration:
    """A fair resource between three actions with units 2, 1, 1 and weights 1, 2, 1."""
    cad = Resource(name="cad", capacity=2, order="fair")
    return Configuration(
        name="fair resource",
        definitions=_defined(
            cad,
            Pool(name="default", order="arrival"),
            Action(ref="a", uses=(Use(resource="cad", units=2),)),
            Action(ref="b", uses=(Use(resource="cad", weight=2),)),
            Action(ref="c", uses=(Use(resource="cad"),)),
        ),
        workers=(worker("u", 3),),
        alive_max=alive_max,
        requests=_requests("a b c"),
        switches=(_capacities(cad, 2, 1),),
        has_batches=False,
        has_returns=False,
    )


def rates(alive_max: int) -> Configuration:
    """The rate of an action and of two resources; an execution holds units while it waits for a start."""
    return Configuration(
        name="rates",
        definitions=_defined(
            Resource(name="api", capacity=9, rank=1, rate=Rate(starts=2, per_seconds=3)),
            Resource(name="mail", capacity=1, rank=2, rate=Rate(starts=1, per_seconds=2)),
            *_by_arrival("default"),
            Action(ref="a", rate=Rate(starts=1, per_seconds=3), uses=(Use(resource="api"),)),
            Action(ref="b", uses=(Use(resource="api"), Use(resource="mail"))),
            Action(ref="c", uses=(Use(resource="mail"),), rate=Rate(starts=2, per_seconds=2)),
        ),
        workers=(worker("u", 2),),
        alive_max=alive_max,
        requests=_requests("a b c"),
        has_cancels=False,
        has_returns=False,
        has_batches=False,
        tick_seconds=1,
    )


def weighted_pool(alive_max: int) -> Configuration:
    """A fair pool with weights, between plain actions and one with a resource; it is paused and resumed."""
    return Configuration(
        name="weighted pool",
        definitions=_defined(
            Resource(name="cad", capacity=1),
            Pool(name="default", weights={"a": 2}),
            Action(ref="a"),
            Action(ref="b"),
            Action(ref="c", uses=(Use(resource="cad"),)),
        ),
        workers=(worker("u", 1),),
        alive_max=alive_max,
        requests=_requests("a b c"),
        switches=(_paused_or_not(Pool(name="default", weights={"a": 2})),),
        has_batches=False,
        has_returns=False,
    )


def shared_worker(alive_max: int) -> Configuration:
    """Two pools share a worker and a resource; each has a plain action too."""
    return Configuration(
        name="shared worker",
        definitions=_defined(
            Resource(name="cad", capacity=1),
            *_by_arrival("default", "gpu"),
            Action(ref="a", uses=(Use(resource="cad"),)),
            Action(ref="b"),
            Action(ref="g", uses=(Use(resource="cad"),), pool="gpu"),
        ),
        workers=(worker("u"), worker("v", pools="default gpu")),
        alive_max=alive_max,
        requests=_requests("a b g"),
        switches=(_here_or_gone(worker("u")),),
        has_cancels=False,
        has_returns=False,
        has_batches=False,
    )


def priorities(alive_max: int) -> Configuration:
    """Two actions with two priorities each at a resource and a pool by arrival."""
    return Configuration(
        name="priorities",
        definitions=_defined(
            Resource(name="cad", capacity=2),
            Resource(name="api", capacity=1),
            Pool(name="default", order="arrival"),
            Action(ref="a", max_concurrent=1, uses=(Use(resource="cad", units=2), Use(resource="api"))),
            Action(ref="b", uses=(Use(resource="cad"),)),
        ),
        workers=(worker("u", 2),),
        alive_max=alive_max,
        requests=(("a", "", 1), ("a", "", 3), ("b", "", 2), ("b", "", 3)),
    )


def patience(alive_max: int) -> Configuration:
    """A pool with a busy worker shares two resources with a pool that has idle ones."""
    cad, api = (Resource(name=name, capacity=1, patience_seconds=2) for name in ("cad", "api"))
    return Configuration(
        name="patience",
        definitions=_defined(
            cad,
            api,
            *_by_arrival("default", "gpu"),
            Action(ref="a", uses=(Use(resource="api"), Use(resource="cad"))),
            Action(ref="b"),
            Action(ref="g", uses=(Use(resource="cad"),), pool="gpu"),
        ),
        workers=(worker("u"), worker("v", 2, pools="gpu")),
        alive_max=alive_max,
        requests=_requests("a b g"),
        switches=(_paused_or_not(Pool(name="default", order="arrival")),),
        tick_seconds=1,
        has_batches=False,
        has_returns=False,
    )


def times(alive_max: int) -> Configuration:
    """Delays, times to live, timeouts and retries of executions that wait, hold units or run."""
    return Configuration(
        name="times",
        definitions=_defined(
            Resource(name="cad", capacity=1, rank=1),
            Resource(name="api", capacity=1, rank=2),
            *_by_arrival("default"),
            Action(ref="a", uses=(Use(resource="cad"), Use(resource="api")), retry=RETRY),
            Action(ref="c", uses=(Use(resource="api"),)),
        ),
        workers=(worker("u", 2),),
        alive_max=alive_max,
        requests=_requests("a c"),
        has_failures=True,
        has_overdues=True,
        ttl_seconds=3,
        delay_seconds=2,
        tick_seconds=1,
        has_batches=False,
    )


def deleted(alive_max: int) -> Configuration:
    """An action with two resources is deleted and defined again; a route changes."""
    a = Action(ref="a", uses=(Use(resource="cad"), Use(resource="api")))
    return Configuration(
        name="deleted",
        definitions=_defined(
            Resource(name="cad", capacity=1),
            Resource(name="api", capacity=1),
            *_by_arrival("default"),
            a,
            Action(ref="b", uses=(Use(resource="api"),)),
        ),
        workers=(worker("u", 2),),
        alive_max=alive_max,
        requests=_requests("a b"),
        switches=(
            (
                define(a),
                define(replace(a, uses=(Use(resource="cad"),), max_concurrent_total=1)),
                DeleteAction(ref="a", reason="gone", cancel_max=9),
            ),
            _defined(
                Resource(name="cad", capacity=1), Resource(name="cad", capacity=1, rank=0, order="fair")
            ),
        ),
    )


def everything(alive_max: int) -> Configuration:
    """Crews, pools, resources, a rate, a fair total, priorities and changes at once."""
    cad = Resource(name="cad", capacity=2, order="fair", patience_seconds=2)
    api = Resource(name="api", capacity=1, rate=Rate(starts=1, per_seconds=1))
    u, v = worker("u", 1, actions="a b"), worker("v", 1, pools="default gpu")
    return Configuration(
        name="everything",
        definitions=_defined(cad,
            api,
            *_by_arrival("default", "gpu"),
            Action(
                    ref="a", max_concurrent=1, max_concurrent_total=2, order="fair",
                    uses=(Use(resource="cad"), Use(resource="api")),
                ),
                Action(ref="b", uses=(Use(resource="cad", units=2),)),
                Action(ref="g", uses=(Use(resource="api"),), pool="gpu")),
        workers=(u, v),
        alive_max=alive_max,
        requests=(("a", "7", 3), ("a", "8", 3), ("g", "", 3)),
        switches=(_here_or_gone(v),),
        has_cancels=False,
        has_returns=False,
        has_batches=False,
        tick_seconds=1,
    )  # fmt: skip


def runs(alive_max: int) -> Configuration:
    """A queue with a limit and runs, at two workers; its limit changes and it is paused; a worker goes."""
    a = Action(ref="a", max_concurrent=1, max_reclaims=2)
    two = replace(a, max_concurrent=2)
    return Configuration(
        name="runs",
        definitions=_defined(*_by_arrival("default"), a),
        workers=(worker("u", 2), worker("v", 2)),
        alive_max=alive_max,
        requests=_requests("a"),
        switches=(
            _defined(a, two, replace(two, paused=True)),
            _comes_and_goes(worker("v", 2)),
        ),
        has_cancels=False,
        has_loads=False,
        run_seconds=0.0625,
    )


def runs_loaded(alive_max: int) -> Configuration:
    """The same without returns and pauses, for new leaders."""
    larger = runs(alive_max)
    return replace(
        larger,
        name="runs loaded",
        switches=(larger.switches[0][:2], _here_or_gone(worker("v", 2))),
        has_returns=False,
        has_loads=True,
    )


def urgent(alive_max: int) -> Configuration:
    """A run at one worker that more urgent executions join."""
    return Configuration(
        name="urgent",
        definitions=_defined(*_by_arrival("default"), Action(ref="a", max_concurrent=1)),
        workers=(worker("u", 2),),
        alive_max=alive_max,
        requests=(("a", "", 3), ("a", "", 1)),
        has_cancels=False,
        has_batches=False,
        run_seconds=0.0625,
    )


def runs_beside(alive_max: int) -> Configuration:
    """A short action with a limit, one without, and one that lasts, in a fair pool with few worker slots."""
    return Configuration(
        name="runs beside",
        definitions=_defined(Action(ref="a", max_concurrent=1), Action(ref="b"), Action(ref="l", runs=False)),
        workers=(worker("u", 1), worker("v", 1, actions="a b")),
        alive_max=alive_max,
        requests=_requests("a b l"),
        has_cancels=False,
        has_returns=False,
        has_batches=False,
        has_loads=False,
        run_seconds=0.0625,
    )


def stalls(alive_max: int) -> Configuration:
    """Runs of two actions at a worker, which recalls return, while time passes; executions fail and retry."""
    retry = RetryPolicy(max_attempts=2, delay_seconds=0.125, factor=1, jitter=0)
    return Configuration(
        name="stalls",
        definitions=_defined(*_by_arrival("default"),
            Action(ref="a", max_concurrent=1, retry=retry), Action(ref="b")),
        workers=(worker("u"),),
        alive_max=alive_max,
        requests=_requests("a b"),
        has_cancels=False,
        has_failures=True,
        has_batches=False,
        has_loads=False,
        run_seconds=0.0625,
        tick_seconds=0.125,
    )  # fmt: skip


CONFIGURATIONS: tuple[tuple[Callable[[int], Configuration], int, int], ...] = (
    (plain, 2, 2), (handover, 2, 2), (crews, 2, 2), (keys, 3, 3), (fair_total, 3, 3), (resources, 2, 2),
    (crossed, 2, 2), (fair_resource, 2, 2), (rates, 2, 2), (weighted_pool, 2, 2), (shared_worker, 2, 3),
    (priorities, 2, 3), (patience, 2, 3), (times, 1, 2), (deleted, 2, 2), (everything, 2, 3),
    (runs, 3, 3), (runs_loaded, 3, 3), (urgent, 4, 4), (runs_beside, 3, 3), (stalls, 3, 3),
)  # fmt: skip
"""Each with the number of live executions that the tests explore, and that the command does: all but `plain`
to the end."""
