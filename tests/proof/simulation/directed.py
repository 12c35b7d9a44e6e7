"""Directed stories: each kind makes one interleaving of LEADER frequent, seeded and randomised around it.

They are small, so that hundreds of them run in a few seconds. Every one passes on the unchanged product; each
planted bug names the kinds that show it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from tests.proof.simulation.faults import Fault, Kind
from tests.proof.simulation.runner import Step
from tests.proof.simulation.story import (
    ActionPlan,
    CommandPlan,
    RequestPlan,
    ResourcePlan,
    SchedulePlan,
    Story,
    story_of,
)

_LEASE: Final = 3.0
_EVERY: Final = 4
"""Each so many stories of the mix is a directed one."""
_MANY: Final[dict[str, Any]] = {"max_reclaims": 100}
_UNLIMITED: Final = ActionPlan(ref="stress.00", limit=None, keys=0, fields=_MANY)


def directed_story(kind: str, seed: int) -> Story:
    """Return a story of a kind."""
    random = Random(f"{kind} {seed}")
    story = KINDS[kind](random)
    return replace(story, requests=_keyed(story.requests, story.actions), seed=seed, kind=kind)


def mixed_story(seed: int, *, size: float = 1.0) -> Story:
    """Return the story of a seed: a random one, or now and then a directed one."""
    if seed % _EVERY:
        return story_of(seed, size=size)
    kinds = sorted(KINDS)
    return directed_story(kinds[seed // _EVERY % len(kinds)], seed)


# Parts.


def _story(
    random: Random,
    *,
    requests: Sequence[RequestPlan],
    commands: Sequence[CommandPlan] = (),
    faults: Sequence[Fault] = (),
    **changed: Any,
) -> Story:
    story = Story(
        seed=0, executors=2, workers=(4, 4), lease_seconds=_LEASE,
        write_seconds=random.choice((0.002, 0.01)), actions=(_UNLIMITED,), resources=(), submitters=3,
        inbox_submitter=2, requests=tuple(requests),
        commands=tuple(sorted(commands, key=lambda each: each.at)),
        faults=tuple(sorted(faults, key=lambda each: each.at)),
    )  # fmt: skip
    return replace(story, **changed)


def _action(random: Random, number: int = 0, **fields: Any) -> ActionPlan:
    limit = fields.pop("limit", random.choice((1, 2, 8, None)))
    keys = fields.pop("keys", random.choice((0, 0, 3)))
    return ActionPlan(ref=f"stress.{number:02}", limit=limit, keys=keys, fields={**_MANY, **fields})


def _ok(random: Random, longest: float = 0.1) -> tuple[Step, ...]:
    return (Step("ok", longest * random.random()),)


def _requests(
    random: Random, count: int, *, seconds: float, script: Callable[[], tuple[Step, ...]], begin: float = 0.5,
    **changed: Any,
) -> list[RequestPlan]:  # fmt: skip
    """Return requests evenly over a time; values of `changed` are values, or functions of the random."""
    instants = sorted(begin + seconds * random.random() for _ in range(count))
    found = []
    for number, at in enumerate(instants):
        fields = {name: value(random) if callable(value) else value for name, value in changed.items()}
        fields = {"submitter": random.randrange(3), "key": random.randrange(3), **fields}
        found.append(RequestPlan(number=number, at=at, action=0, script=script(), **fields))
    return found


def _keyed(requests: Sequence[RequestPlan], actions: Sequence[ActionPlan]) -> tuple[RequestPlan, ...]:
    """Give each request a key that its action has."""
    return tuple(
        replace(each, key=each.key % actions[each.action].keys if actions[each.action].keys else 0)
        for each in requests
    )


def _plain(random: Random, count: int, seconds: float, longest: float = 0.1) -> list[RequestPlan]:
    return _requests(random, count, seconds=seconds, script=lambda: _ok(random, longest))


def _mixed(random: Random, count: int, seconds: float) -> list[RequestPlan]:
    """Return requests of all that has a past: delays, retries, times to live, waits behind a limit."""
    scripts: tuple[tuple[Step, ...], ...] = (
        (Step("ok", 0.05),), (Step("ok", 1.5),), (Step("retry", 0.05), Step("retry", 0.05), Step("ok", 0.05)),
        (Step("fail", 0.05),), (Step("refuse", 0.0), Step("ok", 0.05)),
    )  # fmt: skip
    return _requests(
        random, count, seconds=seconds, script=lambda: random.choice(scripts),
        ttl_seconds=lambda r: r.choice((None, None, None, 0.3, 2.0)),
        run_after=lambda r: r.choice((None, None, None, 1.0, 3.0)),
        has_idempotency_key=lambda r: r.random() < 0.3,
    )  # fmt: skip


def _faults(
    random: Random, kind: Kind, count: int, *, until: float, since: float = 0.5, **fields: Any
) -> list[Fault]:
    found = []
    for _ in range(count):
        values = {name: value(random) if callable(value) else value for name, value in fields.items()}
        found.append(Fault(at=since + (until - since) * random.random(), kind=kind, **values))
    return found


def _lose(at: float, names: str, seconds: float, *, worker: int = -1, share: float = 1.0) -> Fault:
    return Fault(at=at, kind="lose", outcome=names, seconds=seconds, target=worker, share=share)


# Leadership and turns.


def _calm(random: Random) -> Story:
    """Nothing goes wrong."""
    requests = _requests(
        random, 25, seconds=6.0, script=lambda: _ok(random, 0.5),
        ttl_seconds=lambda r: r.choice((None, None, 0.2, 1.0)),
    )  # fmt: skip
    # Some wait for longer than their time to live, and end without a worker.
    return _story(random, requests=requests, executors=3, actions=(_action(random, limit=1, keys=0),))


def _unknown_commits(random: Random) -> Story:
    """Many commits get no answer, arrive late, or not at all."""
    faults = _faults(
        random, "write", 14, until=5.0, target=-1,
        outcome=lambda r: r.choice(("lost", "unanswered", "running", "queued")),
        seconds=lambda r: r.choice((0.01, 0.05, 0.3)),
    )  # fmt: skip
    return _story(random, actions=(_action(random),), requests=_plain(random, 60, 5.0), faults=faults)


def _slow_commits(random: Random) -> Story:
    """Commits take most of a second."""
    faults = _faults(
        random, "write", 6, until=5.0, target=-1, outcome="slow", seconds=lambda r: 0.3 + r.random()
    )
    return _story(random, actions=(_action(random),), requests=_plain(random, 30, 5.0), faults=faults)


def _leader_dies(random: Random) -> Story:
    """The leader is killed right at a commit, again and again: nothing of that turn was published."""
    commits = ("requests", "grants", "ends", "delays", "workers", "reclaims", "early cancels")
    faults = _faults(
        random, "kill executor when", 4, until=6.0, outcome=lambda r: f"commit {r.choice(commits)}",
        seconds=lambda r: r.random(),
    )  # fmt: skip
    faults += _faults(
        random, "kill executor", 3, until=6.0, target=-1, seconds=lambda r: r.random(),
        calls=lambda r: r.randrange(8), is_after=lambda r: r.random() < 0.5,
    )  # fmt: skip
    actions = (_action(random, keys=0, retry={"max_attempts": 3, "delay_seconds": 0.2}),)
    requests = _mixed(random, 30, 6.0)
    return _story(random, requests=requests, actions=actions, executors=3, faults=faults)


def _leader_pauses(random: Random) -> Story:
    """The leader stops between a commit and what it publishes, for longer than its leadership."""
    faults = [
        Fault(
            at=at, kind="pause executor when", seconds=3.4 + 1.6 * random.random(),
            outcome=f"commit {random.choice(('grants', 'ends'))}",
        )
        for at in (1.0 + random.random(), 8.0 + random.random())
    ]  # fmt: skip
    return _story(random, requests=_plain(random, 60, 14.0), faults=faults)


def _long_lives(random: Random) -> Story:
    """Executions live for seconds, with a past of every kind, and leaders change all the time."""
    faults = _faults(
        random, "kill executor", 5, since=2.0, until=9.0, target=-1, seconds=lambda r: 0.5 * r.random()
    )
    faults += _faults(random, "kill worker", 2, until=6.0, target=lambda r: r.randrange(2), seconds=0.5)
    resources = tuple(
        ResourcePlan(name=f"r{n}", capacity=3, order=random.choice(("arrival", "fair"))) for n in range(2)
    )
    uses = [{"resource": "r0", "units": 2}, {"resource": "r1", "units": random.choice((1, 3))}]
    retry = {"max_attempts": 3, "delay_seconds": 0.5}
    actions = (
        _action(random, 0, limit=2, keys=0, retry=retry),
        _action(
            random, 1, limit=None, keys=3, uses=uses, rate={"starts": 10, "per_seconds": 1.0}, retry=retry
        ),
        _action(random, 2, limit=None, keys=3, max_concurrent_total=2, order="fair", retry=retry),
    )
    requests = [replace(each, action=random.randrange(3)) for each in _mixed(random, 40, 5.0)]
    commands = _cancels(random, requests, (0.3, 1.5))
    return _story(
        random, requests=requests, actions=actions, resources=resources,
        commands=commands, faults=faults, executors=3,
    )  # fmt: skip


def _cancels(random: Random, requests: Sequence[RequestPlan], after: tuple[float, ...]) -> list[CommandPlan]:
    return [
        CommandPlan(
            at=each.at + random.choice(after), kind="cancel", target=each.number,
            by_inbox=random.random() < 0.5,
        )
        for each in requests
        if random.random() < 0.25
    ]  # fmt: skip


def _cancels_lost(random: Random) -> Story:
    """The leader dies with a cancel that it has committed and not published."""
    requests = _requests(random, 6, seconds=1.0, script=lambda: (Step("hang", 0.0),))
    commands = [
        CommandPlan(at=2.0 + 2 * random.random(), kind="cancel", target=each.number) for each in requests
    ]
    faults = [
        Fault(at=1.9, kind="kill executor when", outcome="commit cancels", seconds=0.5) for _ in range(2)
    ]
    return _story(random, requests=requests, commands=commands, faults=faults, executors=3)


def _early_cancels(random: Random) -> Story:
    """Cancels come before their requests, and the leader changes in between."""
    requests = _requests(
        random, 12, seconds=2.0, begin=4.0, script=lambda: _ok(random), has_idempotency_key=True
    )
    commands = [
        CommandPlan(
            at=each.at - random.choice((3.5, 2.0, 1.0)), kind="cancel by key", target=each.number,
            by_inbox=random.random() < 0.5,
        )
        for each in requests
        if random.random() < 0.6
    ]  # fmt: skip
    faults = _faults(random, "kill executor", 2, since=2.0, until=5.0, target=-1, seconds=0.3)
    faults.append(Fault(at=1.0, kind="kill executor when", outcome="commit early cancels", seconds=0.3))
    return _story(
        random, requests=requests, commands=commands,
        actions=(_action(random, keys=0),), faults=faults, executors=3,
    )  # fmt: skip


def _copies(random: Random) -> Story:
    """Requests come twice: the leader dies before it acknowledges, and clients publish again."""
    faults = _faults(
        random, "kill executor when", 4, until=4.0, outcome="commit requests", seconds=lambda r: r.random()
    )
    faults += _faults(random, "connections break", 3, until=4.0)
    requests = _requests(
        random, 400, seconds=4.0, script=lambda: _ok(random, 0.02), key=0, submitter=lambda r: r.randrange(2),
        has_idempotency_key=lambda r: r.random() < 0.5,
    )  # fmt: skip
    return _story(random, requests=requests, workers=(40,), faults=faults)


def _failover(random: Random) -> Story:
    """The database fails over to a standby that lacks the last commits, among them a whole leadership."""
    at = 2.0 + 2 * random.random()
    faults = [Fault(at=at, kind="failover", seconds=1.5 + random.random())]
    if random.random() < 0.7:
        faults.append(Fault(at=at + 0.2, kind="kill executor", target=-1, seconds=0.5))
    if random.random() < 0.7:
        # Its clock is behind.
        faults.append(Fault(at=at + 1.4, kind="database clock steps", seconds=-3600.0))
    requests = _requests(
        random, 30, seconds=6.0, script=lambda: (Step("ok", random.choice((0.05, 0.5, 15.0))),)
    )
    return _story(random, requests=requests, workers=(8, 8), faults=faults, executors=3)


def _lost_epoch(random: Random) -> Story:
    """A failover loses an epoch that a clock behind all epochs has not dated, and the new clock neither."""
    at = 3.0 + random.random()
    faults = [
        Fault(at=1.0 + random.random(), kind="database clock steps", seconds=-3600.0),
        Fault(at=at, kind="failover", seconds=1.5 + random.random()),
        Fault(at=at + 0.2, kind="kill executor", target=-1, seconds=0.5),
    ]
    requests = _requests(random, 30, seconds=6.0, script=lambda: (Step("ok", random.choice((0.05, 0.5))),))
    return _story(random, requests=requests, workers=(8, 8), faults=faults)


def _clock_back(random: Random) -> Story:
    """The next leader meets a clock of the database that was set back."""
    faults = [
        Fault(at=1.5 + random.random(), kind="database clock steps", seconds=-3600.0),
        *_faults(random, "kill executor", 2, since=2.6, until=5.0, target=-1, seconds=0.3),
    ]
    actions = (_action(random, keys=0, retry={"max_attempts": 3, "delay_seconds": 0.5}),)
    return _story(random, requests=_mixed(random, 20, 5.0), actions=actions, faults=faults)


def _slow_loads(random: Random) -> Story:
    """A load takes longer than a leadership lasts without a turn."""
    faults = [
        Fault(at=0.0, kind="slow loads", delay=4.9, seconds=60.0),
        *_faults(random, "kill executor", 1, since=8.0, until=10.0, target=-1, seconds=0.3),
    ]
    return _story(
        random, actions=(_action(random),), requests=_plain(random, 15, 10.0), faults=faults, executors=3
    )


def _leader_without_database(random: Random) -> Story:
    """The leader does not reach the database for long, and its connection to the broker stands."""
    faults = [Fault(at=2.0 + random.random(), kind="executor without database", target=-1, seconds=25.0)]
    return _story(random, actions=(_action(random),), requests=_plain(random, 40, 12.0), faults=faults)


def _leader_without_broker(random: Random) -> Story:
    """The leader does not reach the broker for long, and another executor does."""
    faults = [Fault(at=2.0 + random.random(), kind="executor without broker", target=-1, seconds=25.0)]
    return _story(random, actions=(_action(random),), requests=_plain(random, 40, 12.0), faults=faults)


def _leader_alone_without_broker(random: Random) -> Story:
    """The only leader does not reach the broker for more than a lease, and a policy drops what it misses."""
    at, seconds = 2.0 + random.random(), 2 * _LEASE + random.random()
    faults = [
        Fault(at=at, kind="executor without broker", target=-1, seconds=seconds),
        _lose(at - 0.2, "Heartbeat Hello", seconds + 0.9),
    ]
    requests = _requests(random, 10, seconds=3.0, script=lambda: (Step("ok", 8 * random.random()),))
    return _story(random, requests=requests, executors=1, faults=faults)


def _leader_rests(random: Random) -> Story:
    """The leader stops for most of a lease, too short for another one, and the heartbeats are lost."""
    at = 2.0 + random.random()
    faults = [
        Fault(at=at, kind="pause executor", target=-1, seconds=2.6),
        _lose(at - 0.8, "Heartbeat Hello", 4.0),
    ]
    requests = _requests(random, 10, seconds=3.0, script=lambda: (Step("ok", 5 * random.random()),))
    return _story(random, requests=requests, executors=1, faults=faults)


def _broker_out(random: Random) -> Story:
    """The broker is out for longer than every lease: no such loss counts."""
    faults = [Fault(at=2.0 + random.random(), kind="broker out", seconds=4.0)]
    requests = _requests(random, 8, seconds=1.5, script=lambda: (Step("ok", 4 + 4 * random.random()),))
    actions = (_action(random, limit=None, keys=0, max_reclaims=0),)
    return _story(random, requests=requests, actions=actions, faults=faults)


def _listener_hangs(random: Random) -> Story:
    """The queue of a listener takes nothing for seconds."""
    faults = _faults(random, "listener hangs", 2, until=6.0, seconds=lambda r: 2.0 + 2 * r.random())
    # What is published is lost now and then, whether an event or not.
    faults += _faults(random, "publish", 12, until=8.0, target=-1, outcome="never")
    return _story(random, actions=(_action(random),), requests=_plain(random, 40, 8.0), faults=faults)


def _dies_before_its_events(random: Random) -> Story:
    """Events do not arrive at the broker, and the leader dies before it has stored them."""
    faults = _faults(random, "publish", 15, until=4.0, target=-1, outcome="never")
    for lost in faults[:5]:
        commit = f"commit {random.choice(('requests', 'grants'))}"
        faults.append(Fault(at=lost.at + 0.02, kind="kill executor when", outcome=commit, seconds=0.3))
    return _story(random, requests=_plain(random, 150, 4.0), faults=faults)


def _refused(random: Random) -> Story:
    """The database refuses results, and requests that are poison, in turns with many others."""
    scripts: tuple[tuple[Step, ...], ...] = (
        (Step("ok", 0.05),),
        (Step("ok", 0.05),),
        (Step("unstorable", 0.05),),
    )
    requests = _requests(random, 40, seconds=3.0, script=lambda: random.choice(scripts))
    faults = _faults(random, "poison", 3, until=3.5)
    faults += [Fault(at=each.at + 0.0001, kind="poison") for each in faults[:2]]
    return _story(random, requests=requests, faults=faults)


# Workers, at the leader.


def _doubt(random: Random) -> Story:
    """Nothing of a worker's heartbeats arrives, and a cancel would: what it runs goes to another one."""
    lost = _lose(2.0 + random.random(), "Heartbeat Hello", _LEASE * (1.2 + 2 * random.random()), worker=0)
    scripts = ((Step("ok", 6.0),), (Step("deaf", 0.0), Step("ok", 1.0)), (Step("ok", 0.3),))
    requests = _requests(random, 12, seconds=6.0, script=lambda: random.choice(scripts))
    faults = [lost]
    if random.random() < 0.5:
        faults.append(Fault(at=lost.at, kind="kill executor when", outcome="commit reclaims", seconds=0.3))
    requests = [
        replace(each, timeout_seconds=9.0 if each.script[0].kind == "deaf" else None) for each in requests
    ]
    return _story(random, requests=requests, workers=(6, 6), faults=faults)


def _doubt_in_a_new_session(random: Random) -> Story:
    """A worker connects again, and no leader hears of it: a cancel would go to its last session."""
    at = 2.0 + random.random()
    faults = [
        Fault(at=at, kind="connections break"),
        _lose(at - 0.01, "Heartbeat Hello", 4 * _LEASE, worker=0),
    ]
    requests = _requests(random, 8, seconds=1.5, script=lambda: (Step("ok", random.choice((1.0, 12.0))),))
    return _story(random, requests=requests, workers=(6, 6), faults=faults)


def _answers_lost(random: Random) -> Story:
    """Heartbeats or answers to them are lost for a while: nothing starts then, and nothing is lost."""
    faults = [
        _lose(at, *random.choice(lost), worker=random.choice((-1, 0)))
        for at in (1.5 + random.random(), 8.0 + random.random())
        for lost in [
            (("Heard", 1.0 + 4 * random.random()), ("Heartbeat", _LEASE * (0.65 + random.random() / 5)))
        ]
    ]
    requests = _requests(
        random, 30, seconds=12.0, script=lambda: _ok(random, 1.0),
        ttl_seconds=lambda r: r.choice((None, 0.5, 1.0)),
    )  # fmt: skip
    return _story(random, requests=requests, workers=(8, 8), faults=faults)


def _recalls(random: Random) -> Story:
    """An action is paused while what was offered cannot start yet, or did not arrive."""
    at = 2.0 + random.random()
    faults = [_lose(at, "Heard", 2.5 + 2 * random.random())]
    if random.random() < 0.6:
        faults.append(_lose(at + 1.0, "Offers", 1.5, share=0.6))
    requests = _requests(random, 20, seconds=4.0, script=lambda: _ok(random, 0.3))
    commands = (CommandPlan(at=at + 1.6 + random.random(), kind="pause", target=0, seconds=6.0),)
    return _story(random, requests=requests, workers=(10, 10), commands=commands, faults=faults)


def _cut_off(random: Random) -> Story:
    """Late answers, then nothing passes between a worker and the broker: it must kill in time."""
    lease, at = 12.0, 6.0 + random.random()
    faults = [
        Fault(at=at - 3.0, kind="delay", outcome="Heard", seconds=3.1, delay=8.0, target=0),
        _lose(at, "Heartbeat Hello", 8.5, worker=0),
        Fault(at=at + 8.1 + 0.3 * random.random(), kind="worker without broker", target=0, seconds=30.0),
    ]
    if random.random() < 0.4:
        faults = [Fault(at=at, kind="worker without broker", target=0, seconds=2 * lease)]
    requests = _requests(random, 6, seconds=4.0, script=lambda: (Step("ok", random.choice((1.0, 40.0))),))
    return _story(random, requests=requests, workers=(6, 6), lease_seconds=lease, faults=faults)


def _reclaims(random: Random) -> Story:
    """A worker dies long after the last change of leader, and the next change follows."""
    faults = [
        Fault(at=2 * _LEASE + 1.0 + random.random(), kind="kill worker", target=0, seconds=0.5),
        Fault(at=12.0 + random.random(), kind="kill executor", target=-1, seconds=0.3),
    ]
    requests = _requests(
        random, 8, seconds=3.0, begin=4.0, script=lambda: (Step("ok", 3 + 3 * random.random()),)
    )
    return _story(random, requests=requests, workers=(6, 6), faults=faults)


def _returned(random: Random) -> Story:
    """Some of what was granted together comes back and is granted again, and the leader changes."""
    scripts = (
        (Step("refuse", 0.0), Step("ok", 3.0)),
        (Step("ok", 3.0),),
        (Step("retry", 0.1), Step("ok", 3.0)),
    )
    requests = _requests(
        random, 12, seconds=0.005, begin=1.0, script=lambda: random.choice(scripts), submitter=0
    )
    actions = (_action(random, limit=None, keys=0, retry={"max_attempts": 3, "delay_seconds": 0.2}),)
    faults = [Fault(at=2.0 + random.random(), kind="kill executor", target=-1, seconds=0.3)]
    return _story(random, requests=requests, actions=actions, workers=(12, 12), faults=faults)


def _takeovers_unheard(random: Random) -> Story:
    """Around a change of leader a policy drops the heartbeats, for less than a lease."""
    at = 3.0 + random.random()
    faults = [
        Fault(at=at, kind="kill executor", target=-1, seconds=0.3),
        _lose(at - 0.4, "Heartbeat Hello", 1.0 + random.random()),
    ]
    requests = _requests(random, 10, seconds=3.0, script=lambda: (Step("ok", 3 * random.random()),))
    return _story(random, requests=requests, workers=(6, 6), faults=faults)


def _probes(random: Random) -> Story:
    """Heartbeats stop and come back just when the leader looks; probes are lost."""
    faults = _faults(
        random, "lose", 9, until=14.0, since=1.0, outcome="Heartbeat Hello",
        seconds=lambda r: _LEASE - 0.3 + 0.6 * r.random(), target=lambda r: r.randrange(6),
    )  # fmt: skip
    faults += _faults(
        random, "write", 30, until=18.0, target=-1, outcome="slow", seconds=lambda r: 0.3 * r.random()
    )
    if random.random() < 0.5:
        faults.append(Fault(at=0.5, kind="lose", outcome="Probe", seconds=12.0, target=-1, share=0.7))
        faults += _faults(random, "kill worker", 1, until=6.0, target=0, seconds=0.3)
    if random.random() < 0.5:
        faults.append(_lose(0.5, "Dismissed", 14.0))
    return _story(random, requests=_plain(random, 25, 14.0, 1.0), workers=(2,) * 6, faults=faults)


def _hellos(random: Random) -> Story:
    """Workers die with their hello in the queue, or connect again while the leader dies."""
    faults: list[Fault] = [
        Fault(at=0.0, kind="kill worker when", outcome="from worker Hello", target=-1, seconds=0.5)
    ]
    faults += _faults(
        random, "kill worker when", 2, until=4.0, outcome="from worker Hello", target=-1, seconds=0.5
    )
    faults += _faults(random, "kill worker", 2, until=4.0, target=lambda r: r.randrange(2), seconds=0.3)
    faults += _faults(random, "connections break", 3, until=6.0)
    faults += _faults(random, "lose", 2, until=6.0, outcome="Welcome", seconds=0.5, target=-1)
    faults += _faults(random, "kill executor when", 1, until=6.0, outcome="to worker Welcome", seconds=0.3)
    return _story(random, actions=(_action(random),), requests=_plain(random, 30, 6.0, 0.5), faults=faults)


def _reconnects(random: Random) -> Story:
    """Workers lose their session with offers in it, and get another one; late heartbeats follow."""
    # Once: with the next session everything would be offered again.
    at, late = 2.0 + 2 * random.random(), 0.8 + 0.5 * random.random()
    faults = [
        Fault(at=at - 0.6, kind="delay", outcome="Heartbeat", seconds=0.6, target=-1, delay=late),
        Fault(at=at, kind="connections break"),
        _lose(at + 0.3, "Offers", 0.8, share=random.choice((0.3, 1.0))),
    ]
    return _story(random, requests=_plain(random, 60, 6.0, 0.3), faults=faults)


def _offers_lost(random: Random) -> Story:
    """Offers are lost on their way, or come twice."""
    faults = _faults(
        random,
        "lose",
        4,
        until=5.0,
        outcome="Offers",
        seconds=lambda r: 0.2 + r.random(),
        target=-1,
        share=0.6,
    )
    faults += _faults(
        random, "delay", 2, until=5.0, outcome="Offers CancelAttempt", seconds=0.5, target=-1,
        delay=lambda r: 1.5 * r.random(),
    )  # fmt: skip
    requests = _plain(random, 40, 5.0)
    commands = _cancels(random, requests, (0.1, 0.5))
    return _story(random, requests=requests, commands=commands, faults=faults)


def _reports_lost(random: Random) -> Story:
    """Reports that the broker has confirmed are lost: by a policy, or a purge."""
    names = "AttemptEnded AttemptReturned AttemptStarted Held"
    faults = _faults(
        random, "lose", 4, until=5.0, outcome=names, seconds=lambda r: r.random(), target=-1,
        share=lambda r: r.choice((0.3, 1.0)),
    )  # fmt: skip
    return _story(random, requests=_plain(random, 40, 5.0), faults=faults)


def _ends_lost(random: Random) -> Story:
    """The ends of one worker do not arrive for long, and what it ran is cancelled."""
    requests = _requests(random, 8, seconds=1.0, script=lambda: (Step("ok", 0.5 + random.random()),))
    commands = tuple(
        CommandPlan(at=2.5 + random.random(), kind="cancel", target=each.number) for each in requests
    )
    return _story(
        random, requests=requests, commands=commands,
        faults=(_lose(0.5, "AttemptEnded AttemptReturned", 25.0),),
    )  # fmt: skip


def _drains(random: Random) -> Story:
    """Workers drain while the first reports of the drain are lost."""
    at = 3.0 + random.random()
    faults = [Fault(at=at, kind="stop worker", target=0), _lose(at, "AttemptEnded AttemptReturned", 0.3)]
    requests = _requests(random, 50, seconds=5.0, script=lambda: (Step("ok", random.choice((0.3, 0.9))),))
    return _story(random, requests=requests, workers=(10, 10), faults=faults)


def _drains_in_peace(random: Random) -> Story:
    """Workers drain after a change of leader."""
    faults = [
        Fault(at=3.0 + random.random(), kind="stop worker", target=0),
        Fault(at=1.5 + random.random(), kind="kill executor", target=-1, seconds=0.3),
    ]
    requests = _requests(random, 40, seconds=5.0, script=lambda: _ok(random, 0.8))
    return _story(random, requests=requests, workers=(8, 8), executors=3, faults=faults)


def _operator_drains(random: Random) -> Story:
    """An operator drains a worker that connects again, also under the next leader."""
    at = 1.5 + random.random()
    faults = [
        Fault(at=at, kind="drain by operator", target=0, seconds=5.0),
        *_faults(random, "connections break", 2, since=at + 0.5, until=at + 4.0),
        *_faults(random, "kill executor", 1, since=at + 0.5, until=at + 4.0, target=-1, seconds=0.3),
    ]
    return _story(random, requests=_plain(random, 40, 6.0, 0.3), faults=faults)


def _deaf(random: Random) -> Story:
    """Attempts run longer than their timeout, do not hear that they shall stop, and cancels are lost."""
    requests = _requests(
        random,
        10,
        seconds=2.0,
        script=lambda: (Step(random.choice(("hang", "deaf", "ok")), 0.1),),
        timeout_seconds=0.5,
    )
    faults = [
        Fault(at=random.random(), kind="worker clock steps", target=0, seconds=random.choice((-3600.0, 5.0)))
    ]
    return _story(random, requests=requests, faults=faults)


def _identity(random: Random) -> Story:
    """A stolen account sends in the name of workers, and about their attempts."""
    faults = _faults(
        random, "forge", 8, since=1.0, until=5.0,
        outcome=lambda r: r.choice(("end", "end of another", "leaving", "hello")),
    )  # fmt: skip
    requests = _requests(random, 30, seconds=4.0, script=lambda: (Step("ok", 0.5 + random.random()),))
    return _story(random, requests=requests, workers=(20, 20), faults=faults)


# Runs: short executions, and a backlog.


def _backlog(random: Random, count: int, longest: float = 0.02, **changed: Any) -> list[RequestPlan]:
    """Return requests that come at once in two bursts: a worker knows how short they are in the second."""
    first = _requests(
        random, count // 4, seconds=0.2, begin=0.6, script=lambda: _ok(random, longest), **changed
    )
    rest = _requests(
        random, count - len(first), seconds=0.3, begin=1.2, script=lambda: _ok(random, longest), **changed
    )
    return _numbered([*first, *rest])


def _numbered(requests: Sequence[RequestPlan]) -> list[RequestPlan]:
    in_order = sorted(requests, key=lambda each: each.at)
    return [replace(each, number=number) for number, each in enumerate(in_order)]


def _run_action(random: Random, **fields: Any) -> ActionPlan:
    return _action(random, **{"limit": random.choice((1, 2, 3)), "keys": random.choice((0, 0, 2)), **fields})


def _runs(random: Random) -> Story:
    """Nothing goes wrong, and queues are in runs."""
    actions = (_run_action(random, limit=random.choice((1, 2, 4, None))),)
    requests = _backlog(random, 250, random.choice((0.004, 0.02, 0.06)))
    return _story(random, requests=requests, actions=actions, workers=(4, random.choice((2, 4))))


def _runs_urgent(random: Random) -> Story:
    """More urgent ones and retries join a run at their place."""
    steps = lambda: random.choice((_ok(random, 0.02), (Step("retry", 0.01), Step("ok", 0.01))))  # noqa: E731
    requests = _requests(random, 200, seconds=2.0, script=steps, priority=lambda r: r.choice((1, 3, 3, 3, 5)))
    actions = (_run_action(random, keys=0, retry={"max_attempts": 3, "delay_seconds": 0.1}),)
    # With a resource in the story, queues are judged by priorities; its action uses none.
    resources = (ResourcePlan(name="unused", capacity=1, order="arrival"),)
    return _story(random, requests=requests, actions=actions, resources=resources)


def _runs_changed(random: Random) -> Story:
    """Limits are lowered and raised, and the action is paused, in the middle of runs."""
    commands = [
        CommandPlan(
            at=1.3 + 0.5 * n + 0.2 * random.random(), kind="limit", target=0, seconds=0.2, limit=limit
        )
        for n, limit in enumerate(random.sample((0, 1, 2, 5), 3))
    ]
    commands.append(CommandPlan(at=3.0 + random.random(), kind="pause", target=0, seconds=0.3))
    actions = (_run_action(random, limit=random.choice((2, 3))),)
    requests = _requests(random, 500, seconds=4.0, script=lambda: _ok(random, 0.03))
    return _story(random, requests=requests, actions=actions, commands=commands)


def _runs_told(random: Random) -> Story:
    """A limit is raised when all that waited is in a run: no further offer carries the new number."""
    bursts = [1.2 + 0.5 * n for n in range(8)]
    requests = [
        request
        for burst in bursts
        for request in _requests(
            random, 6, seconds=0.01, begin=burst, script=lambda: (Step("ok", 0.02 + 0.03 * random.random()),)
        )
    ]
    commands = tuple(
        CommandPlan(at=burst + 0.05, kind="limit", target=0, seconds=0.3, limit=random.choice((2, 3)))
        for burst in bursts[2:]
    )
    first = _requests(random, 30, seconds=0.3, begin=0.6, script=lambda: _ok(random, 0.02))
    actions = (_run_action(random, limit=1, keys=0),)
    return _story(random, requests=_numbered([*first, *requests]), actions=actions, commands=commands)


def _runs_stalled(random: Random) -> Story:
    """Among short executions there are long ones, and another worker has nothing to do."""
    scripts = [_ok(random, 0.02) for _ in range(40)] + [(Step("ok", 3.0 + random.random()),)]
    requests = _requests(random, 240, seconds=3.0, script=lambda: random.choice(scripts))
    return _story(random, requests=requests, workers=(2, 2))


def _runs_returned(random: Random) -> Story:
    """Workers cannot start some of a run: what is behind it comes back too."""
    scripts = [_ok(random, 0.05) for _ in range(8)] + [(Step("refuse", 0.0), Step("ok", 0.01))]
    requests = _requests(random, 250, seconds=1.0, script=lambda: random.choice(scripts))
    faults = _faults(random, "slow confirms", 3, since=1.2, until=4.0, seconds=0.3)
    return _story(
        random, requests=requests, actions=(_run_action(random, limit=random.choice((1, 1, 2))),),
        write_seconds=random.choice((0.002, 0.025)), faults=faults,
    )  # fmt: skip


def _runs_lost(random: Random) -> Story:
    """Workers and leaders die in the middle of runs, and sessions begin anew."""
    faults = _faults(
        random, "kill worker", 2, since=1.2, until=3.5, target=lambda r: r.randrange(2), seconds=0.3
    )
    faults += _faults(random, "connections break", 2, since=1.2, until=3.5)
    faults += _faults(random, "kill executor", 1, since=1.2, until=3.5, target=-1, seconds=0.3)
    faults += _faults(
        random, "kill executor when", 1, since=1.2, until=3.5, seconds=0.3,
        outcome=lambda r: f"commit {r.choice(('grants', 'ends'))}",
    )  # fmt: skip
    requests = _requests(random, 500, seconds=3.0, script=lambda: _ok(random, 0.02))
    return _story(random, requests=requests, actions=(_run_action(random),), executors=3, faults=faults)


def _runs_reconnected(random: Random) -> Story:
    """Workers connect again, and miss the last offers of their runs."""
    faults: list[Fault] = []
    for n in range(6):
        at = 1.2 + 0.6 * n + 0.3 * random.random()
        faults += [_lose(at - 0.08, "Offers", 0.08), Fault(at=at, kind="connections break")]
    requests = _requests(random, 500, seconds=4.0, script=lambda: _ok(random, 0.03))
    return _story(
        random, requests=requests, actions=(_run_action(random),), faults=faults,
        write_seconds=random.choice((0.002, 0.025)),
    )  # fmt: skip


def _runs_with_losses(random: Random) -> Story:
    """Offers and recalls of runs are lost, or come late, and commits get no answer."""
    faults = _faults(
        random, "lose", 5, since=1.0, until=4.0, outcome="Offers Recall", seconds=0.1, target=-1, share=0.5
    )
    faults += _faults(
        random, "delay", 4, since=1.0, until=4.0, outcome="Offers", seconds=0.1, target=-1,
        delay=lambda r: 0.2 * r.random(), share=0.5,
    )  # fmt: skip
    faults += _faults(
        random, "write", 8, since=1.0, until=4.0, target=-1, seconds=0.05,
        outcome=lambda r: r.choice(("lost", "unanswered")),
    )  # fmt: skip
    commands = (CommandPlan(at=2.0 + random.random(), kind="pause", target=0, seconds=0.3),)
    requests = _requests(random, 500, seconds=3.5, script=lambda: _ok(random, 0.02))
    return _story(random, requests=requests, actions=(_run_action(random),), commands=commands, faults=faults)


def _runs_of_old_leaders(random: Random) -> Story:
    """A leader stops with a run that it has committed and not published, for longer than its leadership."""
    at = 1.2 + random.random()
    fault = Fault(at=at, kind="pause executor when", seconds=3.4 + random.random(), outcome="commit grants")
    requests = _requests(random, 500, seconds=6.0, script=lambda: _ok(random, 0.02))
    return _story(random, requests=requests, actions=(_run_action(random),), faults=(fault,))


def _runs_moved(random: Random) -> Story:
    """An operator drains the worker of a run, twice: the queue goes on at another one."""
    at = 1.4 + 0.5 * random.random()
    faults = [
        Fault(at=at, kind="drain by operator", target=random.randrange(2), seconds=1.0),
        Fault(at=at + 1.5, kind="drain by operator", target=random.randrange(2), seconds=1.0),
    ]
    requests = _requests(random, 500, seconds=3.0, script=lambda: _ok(random, 0.02))
    return _story(random, requests=requests, actions=(_run_action(random),), faults=faults)


def _schedules(random: Random, faults: Sequence[Fault], *, seconds: float = 9.0) -> Story:
    """Return schedules of each overlap beside some requests."""
    jitter = {"jitter": random.choice((0.0, 0.9))}
    every = {"catch_up": "all", "ttl": 2.5, **jitter}
    schedules = [
        SchedulePlan(name="queue", seconds=seconds, fields=every),
        SchedulePlan(name="skip", seconds=seconds, fields={**every, "overlap": "skip"}),
        SchedulePlan(name="cancel", seconds=seconds, fields={**every, "overlap": "cancel_running"}),
    ]
    return _story(
        random, requests=_plain(random, 10, 3.0), faults=faults, executors=3, schedules=tuple(schedules)
    )


def _singletons(random: Random) -> Story:
    """Each request replaces what has its name, while leaders die with commits that they do not know."""
    requests = _requests(
        random, 80, seconds=5.0, script=lambda: _ok(random, 0.5), key=0,
        run_after=lambda r: r.choice((None, 1.0)), singleton=lambda r: r.choice(("a", "b")),
    )  # fmt: skip
    faults = _faults(random, "kill executor", 3, until=5.0, target=-1, seconds=0.3)
    faults += _faults(random, "connections break", 2, until=5.0)
    actions = (_action(random, limit=1, keys=0),)
    return _story(random, requests=requests, actions=actions, faults=faults, executors=3)


def _schedules_over_leaders(random: Random) -> Story:
    """Leaders die while occurrences come, some right at the commit of one."""
    faults = _faults(
        random, "kill executor when", 2, until=8.0, outcome="commit requests", seconds=lambda r: r.random()
    )
    faults += _faults(random, "kill executor", 3, until=9.0, target=-1, seconds=lambda r: r.random())
    return _schedules(random, faults)


def _schedules_and_unknown_commits(random: Random) -> Story:
    """Commits of occurrences get no answer, arrive late, or not at all."""
    faults = _faults(
        random, "write", 14, until=9.0, target=-1,
        outcome=lambda r: r.choice(("lost", "unanswered", "running", "queued")),
        seconds=lambda r: r.choice((0.01, 0.05, 0.3)),
    )  # fmt: skip
    return _schedules(random, faults)


def _schedules_late(random: Random) -> Story:
    """The leader stops for seconds: several occurrences of each schedule are due at once."""
    faults = [
        Fault(at=at, kind="pause executor", target=-1, seconds=4.0 + random.random()) for at in (2.0, 7.0)
    ]
    return _schedules(random, faults, seconds=14.0)


KINDS: Final[dict[str, Callable[[Random], Story]]] = {
    "calm": _calm,
    "unknown commits": _unknown_commits,
    "slow commits": _slow_commits,
    "leader dies": _leader_dies,
    "leader pauses": _leader_pauses,
    "leader rests": _leader_rests,
    "long lives": _long_lives,
    "cancels lost": _cancels_lost,
    "early cancels": _early_cancels,
    "copies": _copies,
    "failover": _failover,
    "lost epoch": _lost_epoch,
    "clock back": _clock_back,
    "slow loads": _slow_loads,
    "leader without database": _leader_without_database,
    "leader without broker": _leader_without_broker,
    "leader alone without broker": _leader_alone_without_broker,
    "broker out": _broker_out,
    "listener hangs": _listener_hangs,
    "dies before its events": _dies_before_its_events,
    "refused": _refused,
    "doubt": _doubt,
    "doubt in a new session": _doubt_in_a_new_session,
    "answers lost": _answers_lost,
    "recalls": _recalls,
    "cut off": _cut_off,
    "returned": _returned,
    "takeovers unheard": _takeovers_unheard,
    "probes": _probes,
    "reclaims": _reclaims,
    "hellos": _hellos,
    "reconnects": _reconnects,
    "offers lost": _offers_lost,
    "reports lost": _reports_lost,
    "ends lost": _ends_lost,
    "drains": _drains,
    "drains in peace": _drains_in_peace,
    "operator drains": _operator_drains,
    "deaf": _deaf,
    "identity": _identity,
    "runs": _runs,
    "runs urgent": _runs_urgent,
    "runs changed": _runs_changed,
    "runs told": _runs_told,
    "runs stalled": _runs_stalled,
    "runs returned": _runs_returned,
    "runs lost": _runs_lost,
    "runs reconnected": _runs_reconnected,
    "runs with losses": _runs_with_losses,
    "runs of old leaders": _runs_of_old_leaders,
    "runs moved": _runs_moved,
    "singletons": _singletons,
    "schedules over leaders": _schedules_over_leaders,
    "schedules and unknown commits": _schedules_and_unknown_commits,
    "schedules late": _schedules_late,
}
"""All kinds, by the interleaving."""
