"""The cases: each is one rule of docs/worker-protocol.md, which a worker keeps or breaks.

A case plays the leader over a `Scene`, and raises AssertionError with a sentence about the worker.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final
from uuid import UUID

import aiormq

from turnstile.common.broker.message import Publication
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, session_queue
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Dismissed,
    Held,
    Leaving,
    Offer,
    Offers,
    Recall,
    Welcome,
)
from turnstile.testing.worker_check.leader import grant
from turnstile.testing.worker_check.scene import (
    ACTION,
    CONCURRENCY,
    DRAIN_SECONDS,
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    MARGIN_SECONDS,
    SETTINGS,
    SOON_SECONDS,
    Scene,
)

Play = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rule."""

    name: str
    section: str
    """Of docs/worker-protocol.md."""
    rule: str
    play: Play


CASES: Final[list[Case]] = []


def case(section: str) -> Callable[[Play], Play]:
    """Declare a case; its name is that of the function, with dashes, and its docstring is the rule."""

    def declare(play: Play) -> Play:
        name = getattr(play, "__name__", "").replace("_", "-")
        CASES.append(Case(name=name, section=section, rule=play.__doc__ or "", play=play))
        return play

    return declare


def check(holds: object, otherwise: str) -> None:
    """Raise AssertionError with a sentence unless something holds."""
    if not holds:
        raise AssertionError(otherwise)


# A session begins.

_SESSION: Final = "A session begins"


@case(_SESSION)
async def hello_describes_the_worker(scene: Scene) -> None:
    """The hello says who the worker is and what it can run, by its settings."""
    await scene.joins()
    hello, arrived = scene.leader.hello, scene.leader.arrived[0]
    check(
        arrived.routing_key == EXECUTOR_HEARTBEATS,
        f"The hello came with the routing key {arrived.routing_key!r} and not {EXECUTOR_HEARTBEATS!r}.",
    )
    UUID(hello.sender.worker_id)
    check(hello.sender.session == 1, f"The first session is {hello.sender.session} and not 1.")
    check(len(hello.sender.secret) >= 16, "The secret has fewer than 16 characters.")
    expected = {
        "name": SETTINGS["TURNSTILE_WORKER_NAME"],
        "pools": (SETTINGS["TURNSTILE_WORKER_POOLS"],),
        "concurrency": CONCURRENCY,
        "lease_seconds": LEASE_SECONDS,
        "is_taking": True,
    }
    for field, value in expected.items():
        found = getattr(hello, field)
        check(found == value, f"The hello has {field} = {found!r}; its settings say {value!r}.")
    served = hello.actions is None or ACTION in hello.actions
    check(served, f"The actions of the hello are {hello.actions}, without {ACTION}.")


@case(_SESSION)
async def queue_of_the_session_is_there(scene: Scene) -> None:
    """The queue of the session exists before its hello, and is exclusive."""
    scene.leader.is_welcoming = False
    await scene.joins()
    sender = scene.leader.hello.sender
    name = session_queue(sender.worker_id, sender.session)
    said = await scene.leader.send_numbered((1, Welcome()))
    check(said is Publication.CONFIRMED, f"The queue {name} did not exist when the hello arrived.")
    connection = await aiormq.connect(scene.link.url)
    try:
        channel = await connection.channel()
        await channel.queue_declare(name, passive=True)
    except aiormq.exceptions.ChannelLockedResource:
        return
    finally:
        await connection.close()
    raise AssertionError(f"The queue {name} is not exclusive: it outlives its worker.")


@case(_SESSION)
async def hello_is_repeated_until_the_welcome(scene: Scene) -> None:
    """The worker repeats its hello until it is welcome, and starts nothing before."""
    scene.leader.is_welcoming = False
    await scene.joins()
    await scene.until(
        lambda: len(scene.leader.hellos) >= 3, "An unanswered hello was not repeated twice in 10 s."
    )
    senders = {each.sender for each in scene.leader.hellos}
    check(len(senders) == 1, "Repeated hellos have different ids, sessions or secrets.")


@case(_SESSION)
async def welcome_is_answered_with_held(scene: Scene) -> None:
    """Each welcome is answered with worker.held; a worker that holds nothing says so."""
    await scene.joins()
    await _held(scene, epoch=1, grants=set())


@case(_SESSION)
async def held_lists_everything(scene: Scene) -> None:
    """After a takeover the worker lists all that waits, runs or has ended there."""
    await scene.serves()
    await scene.offer(1, seconds=0.1, queue="check.b")
    await scene.leader.ended(1)
    await _commit_is_heard(scene)
    scene.leader.is_committing = False
    await scene.offer(2, seconds=0.1, queue="check.b")
    await scene.leader.ended(2)
    await scene.offer(3, 4, at_once=1, seconds=6)
    await scene.runs(3)
    await _takeover(scene)
    held = await _held(scene, epoch=2, grants={2, 3, 4})
    check(len(held.grants) == len(set(held.grants)), "worker.held lists a grant more than once.")


@case(_SESSION)
async def takeover_repeats_what_is_kept(scene: Scene) -> None:
    """With a higher epoch the worker publishes all reports that it keeps once more."""
    await scene.serves()
    scene.leader.is_committing = False
    await scene.offer(1, seconds=0.1)
    await scene.leader.ended(1)
    count = len(scene.leader.reports)
    await _takeover(scene)
    await scene.until(
        lambda: any(
            isinstance(each.body, AttemptEnded) and each.epoch_seen == 2
            for each in scene.leader.reports[count:]
        ),
        "The end that was not committed was not published again after the takeover.",
    )


@case(_SESSION)
async def lower_epoch_is_ignored(scene: Scene) -> None:
    """Messages of a lower epoch than the highest that was seen are ignored."""
    await scene.serves()
    await _takeover(scene)
    await scene.offer(1, seconds=2, grant=Grant(2, 1))
    await scene.runs(1)
    cancel = CancelAttempt(execution_id=1, grant=Grant(2, 1), reason="by an old leader")
    await scene.leader.send_numbered((50, cancel), epoch=1)
    (end,) = await scene.leader.ended(1)
    check(
        end.status is Status.COMPLETED, f"A cancel of an old leader had an effect: the end is {end.status}."
    )


@case(_SESSION)
async def numbers_begin_again_with_an_epoch(scene: Scene) -> None:
    """With a higher epoch the numbers of messages begin again at 1."""
    await scene.serves()
    await scene.received(scene.leader.next_number() - 1)
    await _takeover(scene)
    await scene.received(1)
    await scene.offer(1, grant=Grant(2, 1))
    await scene.leader.ended(1)


@case(_SESSION)
async def lost_connection_begins_a_session(scene: Scene) -> None:
    """After a lost connection the next session of the same id has the next number; work goes on."""
    await scene.serves()
    await scene.offer(1, 2, at_once=1, seconds=3)
    await scene.runs(1)
    scene.link.cut()
    scene.link.mend()
    await scene.until(lambda: scene.leader.hello.sender.session > 1, "No hello of a second session arrived.")
    first, second = scene.leader.hellos[0].sender, scene.leader.hello.sender
    check(
        first.worker_id == second.worker_id, "After a short loss of the connection the worker has a new id."
    )
    check(first.secret == second.secret, "The second session has another secret.")
    await scene.until(
        lambda: any(
            isinstance(each.body, Held) and each.sender.session == second.session
            for each in scene.leader.reports
        ),
        "The welcome of the second session was not answered with worker.held.",
    )
    ends = await scene.leader.ended(1, 2)
    check(all(each.status is Status.COMPLETED for each in ends), "A lost connection ended work.")


@case(_SESSION)
async def messages_share_a_body(scene: Scene) -> None:
    """Several messages of the leader may share a body, and fields that are unknown are ignored."""
    await scene.serves()
    offers = [
        Offers(queue=f"check.{each}", at_once=1, offers=(scene.run(each, extra={"a_new_field": [1]}),))
        for each in (1, 2)
    ]
    await scene.leader.send(*offers, Offers(queue="check.1", at_once=2, offers=(scene.run(3),)))
    await scene.leader.ended(1, 2, 3)


# Heartbeats and the lease.

_LEASE: Final = "Heartbeats and the lease"


@case(_LEASE)
async def heartbeats_are_regular(scene: Scene) -> None:
    """A welcome worker sends a heartbeat at each interval; the numbers rise."""
    await scene.serves()
    count, began_at = len(scene.leader.heartbeats), time.monotonic()
    await scene.until(
        lambda: len(scene.leader.heartbeats) >= count + 6,
        f"Fewer than six heartbeats arrived in 10 s; the interval is {HEARTBEAT_SECONDS:g} s.",
    )
    seconds = time.monotonic() - began_at
    check(seconds < 12 * HEARTBEAT_SECONDS + 1, f"Six heartbeats took {seconds:.1f} s.")
    numbers = [each.number for each in scene.leader.heartbeats]
    check(all(one < two for one, two in pairwise(numbers)), f"The numbers of heartbeats are {numbers}.")


@case(_LEASE)
async def received_stops_at_a_gap(scene: Scene) -> None:
    """`received` counts up to the first message that is missing, and goes on once it has come."""
    await scene.serves()
    missing = scene.leader.next_number()
    behind = await scene.offer(1, seconds=0.1)
    await scene.quiet()
    highest = scene.leader.heartbeats[-1].received
    check(
        highest == missing - 1, f"Message {missing} was not sent, and `received` is {highest} all the same."
    )
    offers = Offers(queue="check.a", at_once=None, offers=(scene.run(1, seconds=0.1),))
    await scene.leader.send_numbered((missing, Offers(queue="check.b", at_once=1, offers=())))
    await scene.leader.send_numbered((behind, offers))
    await scene.received(behind)


@case(_LEASE)
async def nothing_starts_without_an_answer(scene: Scene) -> None:
    """Nothing starts before a heartbeat was answered."""
    scene.leader.is_answering = False
    await scene.joins()
    await scene.offer(1, seconds=0.1)
    await scene.quiet()
    check(not scene.trace.begun(), "An execution started though no heartbeat was ever answered.")
    scene.leader.is_answering = True
    await scene.leader.ended(1)


@case(_LEASE)
async def doubt_starts_nothing(scene: Scene) -> None:
    """Behind the margin of the lease what runs goes on while a cancel would arrive; nothing starts."""
    await scene.serves()
    await scene.offer(1, seconds=LEASE_SECONDS + 6)
    await scene.runs(1)
    await _doubt(scene)
    await scene.offer(2, queue="check.b", seconds=0.1)
    await scene.quiet()
    check("2" not in scene.trace.begun(), "An execution started though the lease was in doubt.")
    check(
        scene.trace.is_running(1),
        "What ran was killed though a cancel would have arrived: only start nothing.",
    )
    scene.leader.is_answering = True
    ends = await scene.leader.ended(1, 2)
    check(all(each.status is Status.COMPLETED for each in ends), "An execution did not complete.")


@case(_LEASE)
async def doubt_obeys_a_cancel(scene: Scene) -> None:
    """A cancel that comes while the lease is in doubt ends the attempt."""
    await scene.serves()
    await scene.offer(1, seconds=LEASE_SECONDS + 20)
    await scene.runs(1)
    await _doubt(scene)
    await scene.leader.cancel(1)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.CANCELLED, f"The end is {end.status} and not cancelled.")
    await scene.until(lambda: not scene.trace.is_running(1), "The cancelled execution still runs.")


@case(_LEASE)
async def lost_lease_kills_everything(scene: Scene) -> None:
    """When the lease ends and no cancel would arrive, the worker kills all and begins under a new id."""
    await scene.serves()
    await scene.offer(1, 2, at_once=1, seconds=LEASE_SECONDS + 20)
    await scene.runs(1)
    scene.worker.may_end = True
    scene.link.cut()
    cut_at = time.time()
    await scene.until(
        lambda: not scene.trace.is_running(1),
        f"An execution still runs {LEASE_SECONDS + 2:g} s after the connection was cut; the lease is"
        f" {LEASE_SECONDS:g} s.",
        LEASE_SECONDS + 2,
    )
    ran_seconds = scene.trace.last(1) - cut_at
    check(ran_seconds <= LEASE_SECONDS, f"An execution ran {ran_seconds:.1f} s without a connection.")
    scene.link.mend()
    await _begins_anew(scene)


@case(_LEASE)
async def dismissed_worker_begins_anew(scene: Scene) -> None:
    """A dismissed worker kills all at once, reports nothing of it, and begins under a new id."""
    await scene.serves()
    await scene.offer(1, 2, at_once=1, seconds=30)
    await scene.runs(1)
    scene.worker.may_end = True
    await scene.leader.send(Dismissed())
    await scene.until(lambda: not scene.trace.is_running(1), "A dismissed worker still runs an execution.")
    await _begins_anew(scene)


# Offers.

_OFFERS: Final = "Offers, cancels, recalls"


@case(_OFFERS)
async def offer_runs_and_ends(scene: Scene) -> None:
    """An offer runs once, and its end names it, its grant, its result and its instants."""
    await scene.serves()
    result = {"text": 'ä"\\\n☃', "list": [1, 2.5, None, True, {}], "large": 2**40}
    before = time.time()
    await scene.offer(1, result=result)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.COMPLETED, f"The end is {end.status}: {end.error}.")
    check(end.grant == grant(1), f"The end names the grant {end.grant} and not {grant(1)}.")
    check(_json(end) == result, f"The result is {_json(end)!r} and not {result!r}.")
    started_at, completed_at = end.started_at or 0.0, end.completed_at or 0.0
    in_order = before - 1 <= started_at <= completed_at <= time.time() + 1
    check(in_order, f"started_at {started_at} and completed_at {completed_at} are not instants of the run.")
    check(completed_at - started_at >= 0.25, "The instants are nearer to each other than the run was long.")


@case(_OFFERS)
async def at_once_is_kept(scene: Scene) -> None:
    """Of a queue at most `at_once` run, and the next one starts without a message when one ends."""
    await scene.serves()
    await scene.offer(1, 2, 3, 4, 5, 6, at_once=2, seconds=0.4)
    await scene.leader.ended(1, 2, 3, 4, 5, 6)
    most = scene.trace.most_at_once()
    check(most <= 2, f"{most} executions of a queue ran at the same time; at_once was 2.")
    check(most == 2, "Executions of a queue ran one after another; at_once was 2.")
    _begun_in_order(scene, ["1", "2", "3", "4", "5", "6"])


@case(_OFFERS)
async def concurrency_is_kept(scene: Scene) -> None:
    """Of all queues together at most the worker's concurrency run, and as many do run."""
    await scene.serves()
    for each in range(1, 4):
        await scene.offer(10 * each, 10 * each + 1, 10 * each + 2, queue=f"check.{each}", seconds=0.6)
    await scene.leader.ended(*(10 * each + one for each in range(1, 4) for one in range(3)))
    most = scene.trace.most_at_once()
    check(most <= CONCURRENCY, f"{most} executions ran at the same time; the concurrency is {CONCURRENCY}.")
    check(most == CONCURRENCY, f"At most {most} executions ran at the same time; {CONCURRENCY} could.")


@case(_OFFERS)
async def order_within_a_queue(scene: Scene) -> None:
    """Within a queue the order is priority (the lowest number first), then execution_id."""
    await scene.serves()
    await scene.offer(5, at_once=1, seconds=1.5)
    await scene.runs(5)
    await scene.offers("check.a", 1, scene.run(10), scene.run(9, priority=5), scene.run(8))
    number = await scene.offers("check.a", 1, scene.run(12, priority=1), scene.run(7))
    await scene.received(number)
    await scene.leader.ended(5, 7, 8, 9, 10, 12)
    _begun_in_order(scene, ["5", "12", "7", "8", "10", "9"])


@case(_OFFERS)
async def full_queue_delays_no_other(scene: Scene) -> None:
    """A queue that is full does not delay another one."""
    await scene.serves()
    await scene.offer(1, 2, 3, at_once=1, seconds=4)
    await scene.runs(1)
    await scene.offer(4, queue="check.b", at_once=1, seconds=0.1)
    await scene.leader.ended(4)
    check("2" not in scene.trace.begun(), "The other queue waited until an execution of the full one ended.")


@case(_OFFERS)
async def at_once_changes(scene: Scene) -> None:
    """A message without offers changes `at_once`: more start at once, or fewer from then on."""
    await scene.serves()
    await scene.offer(1, 2, 3, 4, 5, at_once=1, seconds=1.5)
    await scene.runs(1)
    await scene.offer(at_once=3)
    await scene.runs(2, 3)
    await scene.received(await scene.offer(at_once=1))
    await scene.leader.ended(1, 2, 3, 4, 5)
    check(
        scene.trace.most_at_once(4, 5) == 1,
        "Two executions started together after at_once had been lowered to 1.",
    )
    check(scene.trace.most_at_once() <= 3, "More than three ran at the same time.")


@case(_OFFERS)
async def offers_behind_a_gap_wait(scene: Scene) -> None:
    """Offers behind a missing number are ignored until both come again; they start in order."""
    await scene.serves()
    missing = scene.leader.next_number()
    behind = await scene.offer(2, at_once=1, seconds=0.3)
    await scene.quiet()
    check(
        not scene.trace.begun(), "An offer behind a missing message started: an earlier one may be missing."
    )
    for number, each in ((missing, 1), (behind, 2)):
        offers = Offers(queue="check.a", at_once=1, offers=(scene.run(each, seconds=0.3),))
        await scene.leader.send_numbered((number, offers))
    await scene.leader.ended(1, 2)
    _begun_in_order(scene, ["1", "2"])


@case(_OFFERS)
async def copy_of_a_message_changes_nothing(scene: Scene) -> None:
    """A copy of a message changes nothing."""
    await scene.serves()
    number = await scene.offer(1, 2, at_once=1, seconds=0.5)
    await scene.runs(1)
    offers = tuple(scene.run(each, seconds=0.5) for each in (1, 2))
    await scene.leader.send_numbered((number, Offers(queue="check.a", at_once=1, offers=offers)))
    await scene.leader.ended(1, 2)
    await scene.quiet()
    _begun_in_order(scene, ["1", "2"])


@case(_OFFERS)
async def offer_of_what_runs_is_answered(scene: Scene) -> None:
    """An offer of what runs already is answered with execution.started, and starts nothing."""
    await scene.serves()
    await scene.offer(1, seconds=5)
    await scene.runs(1)
    await scene.until(lambda: scene.leader.started() == [1], "The start was not reported.")
    await _commit_is_heard(scene)
    count = len(scene.leader.reports)
    await scene.offer(1, seconds=5)
    await scene.until(
        lambda: any(isinstance(each.body, AttemptStarted) for each in scene.leader.reports[count:]),
        "The repeated offer was not answered with execution.started.",
    )
    await scene.leader.ended(1)
    _begun_in_order(scene, ["1"])


@case(_OFFERS)
async def offer_of_what_has_ended_is_answered(scene: Scene) -> None:
    """An offer of what has ended is answered with the same end while that is kept."""
    await scene.serves()
    scene.leader.is_committing = False
    await scene.offer(1, seconds=0.1, result=17)
    (first,) = await scene.leader.ended(1)
    count = len(scene.leader.reports)
    await scene.offer(1, seconds=0.1, result=18)
    await scene.until(
        lambda: any(each.body == first for each in scene.leader.reports[count:]),
        "The repeated offer was not answered with the end that was reported before.",
    )
    _begun_in_order(scene, ["1"])


@case(_OFFERS)
async def offer_after_the_commit_is_returned(scene: Scene) -> None:
    """An offer of what has ended and was committed is answered with a return, and never starts."""
    await scene.serves()
    await scene.offer(1, seconds=0.1)
    (end,) = await scene.leader.ended(1)
    await _commit_is_heard(scene)
    count = len(scene.leader.reports)
    await scene.offer(1, seconds=0.1)
    await scene.until(
        lambda: any(
            each.body == end or (isinstance(each.body, AttemptReturned) and each.body.execution_id == 1)
            for each in scene.leader.reports[count:]
        ),
        "The repeated offer was answered neither with a return nor with the same end.",
    )
    _begun_in_order(scene, ["1"])


@case(_OFFERS)
async def timeout_is_enforced(scene: Scene) -> None:
    """The worker stops what runs longer than its timeout, and reports `timeout`."""
    await scene.serves()
    await scene.offer(1, seconds=30, timeout_seconds=0.5)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.TIMEOUT, f"The end is {end.status} and not timeout.")
    ran_seconds = (end.completed_at or 0.0) - (end.started_at or 0.0)
    check(
        ran_seconds < 0.5 + GRACE_SECONDS + 2,
        f"A run with a timeout of 0.5 s ended after {ran_seconds:.1f} s.",
    )
    await scene.quiet()
    check(not scene.trace.is_running(1), "The execution still runs after its end was reported.")


@case(_OFFERS)
async def expired_offer_never_starts(scene: Scene) -> None:
    """What has not started after `expires_in` ends as `expired` and never starts."""
    await scene.serves()
    await scene.offers(
        "check.a", 1, scene.run(1, seconds=2), scene.run(2, expires_in_seconds=0.5), scene.run(3)
    )
    _, second, third = await scene.leader.ended(1, 2, 3)
    check(second.status is Status.EXPIRED, f"The end is {second.status} and not expired.")
    check(third.status is Status.COMPLETED, f"The one behind it ended as {third.status}.")
    _begun_in_order(scene, ["1", "3"])


# Cancels.


@case(_OFFERS)
async def cancel_stops_what_runs(scene: Scene) -> None:
    """A cancel stops what runs, and the end has the status `cancelled`."""
    await scene.serves()
    await scene.offer(1, seconds=30)
    await scene.runs(1)
    await scene.leader.cancel(1)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.CANCELLED, f"The end is {end.status} and not cancelled.")
    await scene.quiet()
    check(not scene.trace.is_running(1), "The execution still runs after its end was reported.")


@case(_OFFERS)
async def cancel_ends_what_waits(scene: Scene) -> None:
    """A cancel of what waits ends it without a start."""
    await scene.serves()
    await scene.offer(1, 2, 3, at_once=1, seconds=1.5)
    await scene.runs(1)
    await scene.leader.cancel(2)
    (end,) = await scene.leader.ended(2)
    check(end.status is Status.CANCELLED, f"The end is {end.status} and not cancelled.")
    check(end.started_at is None, "The end of what never started has a started_at.")
    await scene.leader.ended(1, 3)
    _begun_in_order(scene, ["1", "3"])


@case(_OFFERS)
async def cancel_before_its_offer(scene: Scene) -> None:
    """A cancel that comes before its offer ends it as well."""
    await scene.serves()
    await scene.leader.cancel(1)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.CANCELLED, f"The end is {end.status} and not cancelled.")
    await scene.offer(1, seconds=0.1)
    await scene.offer(2, seconds=0.1)
    await scene.leader.ended(2)
    _begun_in_order(scene, ["2"])


@case(_OFFERS)
async def cancel_after_the_end(scene: Scene) -> None:
    """A cancel of what has ended changes nothing."""
    await scene.serves()
    scene.leader.is_committing = False
    await scene.offer(1, seconds=0.1)
    await scene.leader.ended(1)
    await scene.leader.cancel(1)
    await scene.quiet()
    found = [str(each.status) for each in scene.leader.bodies(AttemptEnded)]
    check(found == ["completed"], f"A cancel after the end led to the ends {found}.")


@case(_OFFERS)
async def cancel_names_its_status(scene: Scene) -> None:
    """A cancel may name the status `timeout`: the end has it."""
    await scene.serves()
    await scene.offer(1, seconds=30)
    await scene.runs(1)
    await scene.leader.send(
        CancelAttempt(execution_id=1, grant=grant(1), reason="overdue", status=Status.TIMEOUT)
    )
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.TIMEOUT, f"The end is {end.status} and not timeout.")


# Recalls.


@case(_OFFERS)
async def recall_returns_what_waits(scene: Scene) -> None:
    """A recall returns what has not started, and reports the starts of what runs."""
    await scene.serves()
    await scene.offer(1, 2, 3, at_once=1, seconds=2)
    await scene.runs(1)
    await scene.offer(4, queue="check.b", at_once=1, seconds=0.1)
    await scene.leader.recall("check.a", 3)
    await scene.returned(2, 3)
    await scene.until(lambda: 1 in scene.leader.started(), "The start of what runs was not reported.")
    check(not any(each.had_started for each in scene.leader.returns().values()), "had_started is wrong.")
    await scene.leader.ended(1, 4)
    await scene.quiet()
    check(not {"2", "3"} & set(scene.trace.begun()), "What was returned started all the same.")


@case(_OFFERS)
async def recall_holds_for_late_offers(scene: Scene) -> None:
    """Offers up to the barrier that arrive after the recall are returned; later grants run."""
    await scene.serves()
    await scene.leader.recall("check.a", 3)
    await scene.offer(2, 3, 4, at_once=1, seconds=0.1)
    await scene.returned(2, 3)
    await scene.quiet()
    check(not {"2", "3"} & set(scene.trace.begun()), "A recalled offer started.")


@case(_OFFERS)
async def grants_are_compared_as_numbers(scene: Scene) -> None:
    """Grants are compared as two numbers: 1.10 is above 1.9, and 2.1 is above both."""
    await scene.serves()
    await scene.leader.send(Recall(queue="check.a", barrier=Grant(1, 9)))
    await scene.offers("check.a", 1, scene.run(1, grant=Grant(1, 10), seconds=0.1))
    await scene.leader.ended(1)
    await scene.leader.send(Recall(queue="check.b", barrier=Grant(1, 10)))
    await scene.offers("check.b", 1, scene.run(3, grant=Grant(1, 9)))
    await scene.returned(3)
    await scene.offers("check.c", 1, scene.run(4, seconds=1.5), scene.run(5, grant=Grant(2, 1), seconds=0.1))
    await scene.runs(4)
    await scene.leader.send(Recall(queue="check.c", barrier=Grant(1, 2**40)))
    await scene.leader.ended(4, 5)


@case(_OFFERS)
async def queue_goes_on_after_a_recall(scene: Scene) -> None:
    """After a recall the worker takes the queue's next offers as usual."""
    await scene.serves()
    await scene.offer(1, 2, at_once=1, seconds=1)
    await scene.runs(1)
    await scene.leader.recall("check.a", 2)
    await scene.returned(2)
    await scene.offers("check.a", 1, scene.run(2, grant=Grant(1, 20)), scene.run(3, grant=Grant(1, 21)))
    await scene.leader.ended(1, 2, 3)
    _begun_in_order(scene, ["1", "2", "3"])


# Reports.

_REPORTS: Final = "Reports"


@case(_REPORTS)
async def reports_are_numbered(scene: Scene) -> None:
    """Reports are persistent, go to executor.completions, and are numbered from 1 without gaps."""
    await scene.serves()
    await scene.offer(*range(1, 21), seconds=0.05)
    await scene.leader.ended(*range(1, 21))
    numbers = list(dict.fromkeys(each.number for each in scene.leader.reports))
    check(numbers == list(range(1, len(numbers) + 1)), f"The reports have the numbers {numbers}.")
    for each in scene.leader.arrived:
        if each.type == "worker.reports":
            check(each.is_persistent, "A message of reports is not persistent (delivery_mode 2).")
            check(each.routing_key == EXECUTOR_COMPLETIONS, f"Reports have the key {each.routing_key!r}.")


@case(_REPORTS)
async def kept_from_follows_the_commit(scene: Scene) -> None:
    """`kept_from` is the lowest number that is not committed."""
    await scene.serves()
    await scene.offer(1, seconds=0.1)
    await scene.leader.ended(1)
    await _commit_is_heard(scene)
    committed = scene.leader.committed(scene.leader.hello.sender.worker_id)
    await scene.offer(2, seconds=0.1)
    await scene.leader.ended(2)
    kept_from = scene.leader.reports[-1].kept_from
    check(
        committed + 1 <= kept_from <= scene.leader.reports[-1].number,
        f"All reports up to {committed} were committed, and kept_from is {kept_from}.",
    )


@case(_REPORTS)
async def uncommitted_reports_are_repeated(scene: Scene) -> None:
    """Reports that the leader does not commit are published again after some seconds."""
    await scene.serves()
    scene.leader.is_committing = False
    await scene.offer(1, seconds=0.1)
    (end,) = await scene.leader.ended(1)
    count = len(scene.leader.reports)
    await scene.until(
        lambda: any(each.body == end for each in scene.leader.reports[count:]),
        "An end that the leader did not commit was not published again within 20 s.",
        20.0,
    )


@case(_REPORTS)
async def reports_survive_an_outage(scene: Scene) -> None:
    """What ends while the broker is away is reported once it is back."""
    await scene.serves()
    await scene.offer(1, seconds=1.0, result="kept")
    await scene.runs(1)
    scene.link.cut()
    await scene.until(lambda: not scene.trace.is_running(1), "The run of one second did not end.", 5.0)
    scene.link.mend()
    (end,) = await scene.leader.ended(1)
    check(_json(end) == "kept", f"The end that was reported after the outage is {end}.")


@case(_REPORTS)
async def long_run_is_reported_as_started(scene: Scene) -> None:
    """A run that takes a second is reported as started, before its end."""
    await scene.serves()
    await scene.offer(1, seconds=3)
    await scene.until(lambda: scene.leader.started() == [1], "The start was not reported.", 3 + SOON_SECONDS)
    check(1 not in scene.leader.ends(), "The start was reported after the end.")
    await scene.leader.ended(1)


@case(_REPORTS)
async def failure_is_reported(scene: Scene) -> None:
    """A failure has the status `failed`, a type and a message; by default it may be retried."""
    await scene.serves()
    await scene.offer(1, seconds=0.1, fails="for now")
    await scene.offer(2, seconds=0.1, fails="for now", delay=7)
    await scene.offer(3, seconds=0.1, fails="for good")
    plain, delayed, final = await scene.leader.ended(1, 2, 3)
    for end in (plain, delayed, final):
        check(end.status is Status.FAILED, f"The end is {end.status} and not failed.")
        type_, message = end.error or ("", "")
        check(type_, "The failure has no error_type.")
        check("as asked" in message, f"The error_message is {message!r}; the action said 'as asked'.")
    check(plain.is_retryable and plain.delay_seconds is None, "A failure for now is not retryable.")
    check(delayed.delay_seconds == 7, f"The delay is {delayed.delay_seconds}; the action asked for 7.")
    check(not final.is_retryable, "A failure for good is retryable.")


@case(_REPORTS)
async def unknown_action_does_no_harm(scene: Scene) -> None:
    """A worker that cannot begin an attempt returns it or ends it as failed; it does not crash."""
    await scene.serves()
    unknown = scene.run(1)
    await scene.offers("check.unknown", 1, _with_action(unknown, "check.unknown"))
    await scene.until(
        lambda: 1 in scene.leader.returns() or 1 in scene.leader.ends(),
        "An offer of an action without code was neither returned nor ended.",
    )
    end = scene.leader.ends().get(1)
    check(end is None or end.status is Status.FAILED, "An action without code did not fail.")
    await scene.offer(2, seconds=0.1)
    await scene.leader.ended(2)


# Logs and progress.

_LIVE: Final = "Logs and progress"


@case(_LIVE)
async def log_is_whole(scene: Scene) -> None:
    """The pieces of a log and the log of the end make the whole log, in order."""
    await scene.serves()
    await scene.offer(1, seconds=2.5, text="näh ☃ so")
    (end,) = await scene.leader.ended(1)
    pieces = {each.start: each.text for each in scene.leader.pieces if each.execution_id == 1}
    if end.log is not None:
        pieces[end.log_start] = end.log
    text = ""
    for start in sorted(pieces):
        check(
            start <= len(text),
            f"A piece of the log starts at {start}, and {len(text)} characters precede it.",
        )
        text = text[:start] + pieces[start]
    check("näh ☃ so" in text, f"The log is {text!r}, without what the action wrote.")


@case(_LIVE)
async def progress_arrives(scene: Scene) -> None:
    """Progress arrives while the action runs, or with its end."""
    await scene.serves()
    await scene.offer(1, seconds=2.5, progress=[3, 12])
    (end,) = await scene.leader.ended(1)
    live = [(each.done, each.total) for each in scene.leader.progress if each.execution_id == 1]
    last = [] if end.progress is None else [(end.progress.done, end.progress.total)]
    check((3, 12) in live + last, f"The progress 3 of 12 did not arrive; {live + last} did.")


# Draining.

_DRAIN: Final = "Draining"


@case(_DRAIN)
async def sigterm_drains(scene: Scene) -> None:
    """SIGTERM: what waits is returned, what runs ends, then worker.leaving, and exit code 0."""
    await scene.serves()
    await scene.offer(1, 2, 3, at_once=1, seconds=1.5)
    await scene.runs(1)
    scene.worker.terminate()
    await scene.returned(2, 3)
    (end,) = await scene.leader.ended(1)
    check(end.status is Status.COMPLETED, f"What ran ended as {end.status}.")
    await _leaves(scene)
    check(not scene.leader.heartbeats[-1].is_taking, "The heartbeats of a drain say is_taking: true.")


@case(_DRAIN)
async def operator_drains(scene: Scene) -> None:
    """`is_draining` of an answer drains the worker, which then ends or stays idle."""
    await scene.serves()
    await scene.offer(1, 2, at_once=1, seconds=1.5)
    await scene.runs(1)
    first = scene.leader.hello.sender
    scene.worker.may_end = True
    scene.leader.is_draining = True
    await scene.returned(2)
    await scene.leader.ended(1)
    await scene.until(lambda: scene.leader.has_left, "No worker.leaving was reported.")
    await asyncio.sleep(2 * HEARTBEAT_SECONDS)
    check(scene.leader.hello.sender == first, "A worker that an operator drained began a new session.")
    scene.worker.terminate()
    await _leaves(scene)


@case(_DRAIN)
async def offer_during_a_drain_is_returned(scene: Scene) -> None:
    """What is offered to a worker that drains is returned; the queue's later offers, too."""
    await scene.serves()
    await scene.offer(1, seconds=2)
    await scene.runs(1)
    scene.worker.terminate()
    await scene.until(
        lambda: not scene.leader.heartbeats[-1].is_taking, "No heartbeat said is_taking: false after SIGTERM."
    )
    await scene.offer(2, queue="check.b", seconds=0.1)
    await scene.returned(2)
    await scene.leader.ended(1)
    check(scene.trace.begun() == ["1"], "A worker that drains started something.")
    await _leaves(scene)


@case(_DRAIN)
async def drain_timeout_returns_what_runs(scene: Scene) -> None:
    """What still runs after the drain timeout is stopped and returned with had_started: true."""
    await scene.serves()
    await scene.offer(1, seconds=60)
    await scene.runs(1)
    scene.worker.terminate()
    await scene.until(
        lambda: 1 in scene.leader.returns(),
        "What ran was not returned after the drain timeout.",
        DRAIN_SECONDS + GRACE_SECONDS + SOON_SECONDS,
    )
    check(scene.leader.returns()[1].had_started, "The return of what had started says had_started: false.")
    await _leaves(scene)


@case(_DRAIN)
async def leaving_waits_for_the_commit(scene: Scene) -> None:
    """A worker that leaves waits some seconds for the commit of its reports."""
    await scene.serves()
    scene.leader.is_committing = False
    scene.worker.terminate()
    await scene.until(lambda: scene.leader.has_left, "No worker.leaving was reported after SIGTERM.")
    await asyncio.sleep(2 * HEARTBEAT_SECONDS)
    check(not scene.worker.has_ended, "The worker ended before its last reports were committed.")
    scene.leader.is_committing = True
    scene.leader.commit()
    await _leaves(scene)


# Parts of cases.


async def _takeover(scene: Scene) -> None:
    """Let a new leader welcome the present session."""
    scene.leader.epoch += 1
    await scene.leader.send(Welcome())


async def _held(scene: Scene, *, epoch: int, grants: set[int]) -> Held:
    def answers() -> list[Held]:
        return [each for each in scene.leader.bodies(Held) if each.epoch == epoch]

    await scene.until(lambda: bool(answers()), "The welcome was not answered with worker.held.")
    found = {execution_id for execution_id, _ in answers()[-1].grants}
    check(found == grants, f"worker.held lists the executions {sorted(found)} and not {sorted(grants)}.")
    return answers()[-1]


async def _doubt(scene: Scene) -> None:
    """Answer nothing until the lease is in doubt."""
    scene.leader.is_answering = False
    silent_from = time.monotonic()
    doubt_seconds = LEASE_SECONDS - MARGIN_SECONDS + 1
    await scene.until(
        lambda: time.monotonic() - silent_from > doubt_seconds, "", LEASE_SECONDS + SOON_SECONDS
    )


async def _begins_anew(scene: Scene) -> None:
    """Expect another id and secret, and no word of what was lost."""
    first = scene.leader.hellos[0].sender
    await scene.until(
        lambda: scene.worker.has_ended or scene.leader.hello.sender.worker_id != first.worker_id,
        "The worker has neither begun under a new id nor ended.",
        LEASE_SECONDS + SOON_SECONDS,
    )
    if not scene.worker.has_ended:
        second = scene.leader.hello.sender
        check(second.secret != first.secret, "The new id has the old secret.")
        check(second.session == 1, f"The first session of the new id is {second.session} and not 1.")
    told = [*scene.leader.ends(), *scene.leader.returns()]
    check(not told, f"The worker reported an end or return of {told}, which it had lost.")


async def _leaves(scene: Scene) -> None:
    """Expect worker.leaving as the last report, and a process that ends with 0."""
    await scene.until(lambda: scene.leader.has_left, "No worker.leaving was reported.")
    await scene.until(lambda: scene.worker.has_ended, "The process did not end after worker.leaving.", 20.0)
    check(scene.worker.exit_code == 0, f"The process ended with {scene.worker.exit_code} and not 0.")
    last = max(scene.leader.reports, key=lambda each: each.number)
    check(isinstance(last.body, Leaving), "worker.leaving is not the last report.")


def _begun_in_order(scene: Scene, names: list[str]) -> None:
    found = scene.trace.begun()
    check(found == names, f"The executions started in the order {found}; expected was {names}.")


async def _commit_is_heard(scene: Scene) -> None:
    """Wait until the worker was told that everything is committed that has arrived."""
    last, worker_id = scene.leader.reports[-1].number, scene.leader.hello.sender.worker_id
    await scene.until(lambda: scene.leader.committed(worker_id) >= last, "A report is missing.")
    await scene.quiet()


def _json(end: AttemptEnded) -> object:
    return None if end.result is None else json.loads(end.result)


def _with_action(given: Offer, action: str) -> Offer:
    return replace(given, action_ref=action)
