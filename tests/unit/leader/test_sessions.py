"""What the leader believes about workers, message by message (LEADER 5)."""

from dataclasses import replace

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Dismissed,
    Heard,
    Heartbeat,
    Held,
    Hello,
    LeaderBody,
    Leaving,
    Report,
    ReportBody,
    Sender,
    ToSession,
    Welcome,
)
from turnstile.executor.leader.ports import Probe
from turnstile.executor.leader.sessions import COMPLETIONS, HEARTBEATS, Sessions
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.definitions import Action
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DefineAction,
    Ended,
    Input,
    Returned,
    WorkerChanged,
    WorkerGone,
)
from turnstile.executor.queue_manager.state import State

EPOCH = 7
LEASE = 30.0


def sender(worker_id: str = "w", session: int = 1, secret: str = "s") -> Sender:
    return Sender(worker_id=worker_id, session=session, secret=secret)


def hello(of: Sender | None = None, *, epoch_seen: int = 0) -> Hello:
    return Hello(
        sender=of or sender(), name="worker", pools=("default",), actions=None, concurrency=2,
        lease_seconds=LEASE, epoch_seen=epoch_seen,
    )  # fmt: skip


def beat(number: int, received: int, *, of: Sender | None = None, epoch: int = EPOCH) -> Heartbeat:
    return Heartbeat(sender=of or sender(), number=number, epoch_seen=epoch, received=received)


class World:
    """Sessions beside a state, and the messages that they sent."""

    def __init__(self) -> None:
        self.state = State(epoch=EPOCH)
        decide(self.state, [DefineAction(action=Action(ref="a"))], 0.0)
        self.sessions = Sessions(EPOCH, self.state, (), 0.0)
        self.reports = 0

    def hello(self, each: Hello, now: float = 0.0) -> list[Input]:
        return self._apply(list(self.sessions.hello(each, now)))

    def beat(self, each: Heartbeat, now: float = 0.0, *, is_certain: bool = True) -> list[Input]:
        return self._apply(list(self.sessions.heartbeat(each, now, is_certain=is_certain)))

    def report(
        self, body: ReportBody, *, of: Sender | None = None, number: int | None = None, kept_from: int = 1
    ) -> list[Input]:
        self.reports = self.reports + 1 if number is None else number
        report = Report(
            sender=of or sender(), number=self.reports, kept_from=kept_from, epoch_seen=EPOCH, body=body
        )
        return self._apply(list(self.sessions.report(report, 0.0, report)))

    def join(self, of: Sender | None = None) -> None:
        self.hello(hello(of))
        self.report(Held(epoch=EPOCH, grants=()), of=of)
        self.sent()

    def granted(self, count: int = 1) -> list[Grant]:
        out = decide(self.state, [Admit(action_ref="a")] * count, 1.0)
        return [each.grant for each in out.granted]

    def sent(self, now: float = 0.0) -> list[LeaderBody]:
        found = []
        for publication in self.sessions.take_out(now):
            assert isinstance(publication.body, ToSession)
            found.append(publication.body.body)
        return found

    def _apply(self, inputs: list[Input]) -> list[Input]:
        decide(self.state, inputs, self.state.now)
        return inputs


def ended(execution_id: int, grant: Grant) -> AttemptEnded:
    return AttemptEnded(execution_id=execution_id, grant=grant, status=Status.COMPLETED, result=b"1")


def test_a_worker_takes_nothing_before_it_has_answered_the_welcome() -> None:
    world = World()
    world.hello(hello())
    assert world.sent() == [Welcome()]
    assert not world.granted()
    (changed,) = world.report(Held(epoch=EPOCH, grants=()))
    assert isinstance(changed, WorkerChanged)
    assert changed.is_taking


def test_an_answer_to_the_welcome_of_another_epoch_counts_nothing() -> None:
    world = World()
    world.hello(hello())
    assert world.report(Held(epoch=EPOCH - 1, grants=())) == []


def test_a_worker_is_written_before_it_is_answered_so_that_the_next_leader_can_ask_it() -> None:
    world = World()
    world.hello(hello())
    row = world.sessions.rows["w"]
    assert row is not None
    assert row.secret_hash != b"s"


def test_a_session_with_another_secret_is_refused() -> None:
    world = World()
    world.join()
    grant = world.granted()[0]
    thief = sender(secret="guess")
    assert world.hello(hello(sender(session=2, secret="guess"))) == []
    assert world.beat(beat(1, 1, of=thief)) == []
    assert world.report(ended(1, grant), of=thief, number=99) == []
    assert world.sessions.refused == 3
    assert world.sent() == []


def test_a_worker_ends_and_returns_only_its_own_attempts() -> None:
    world = World()
    world.join()
    grant = world.granted()[0]
    other = sender("other", secret="o")
    world.join(other)
    assert world.report(ended(1, grant), of=other, number=2) == []
    assert world.report(AttemptReturned(execution_id=1, grant=grant), of=other, number=3) == []
    assert len(world.sessions.take_stale()) == 1
    (end,) = world.report(ended(1, grant), number=2)
    assert isinstance(end, Ended)


def test_what_the_worker_does_not_hold_is_offered_again() -> None:
    world = World()
    world.join()
    grants = world.granted(2)
    world.hello(hello(sender(session=2)))
    world.report(Held(epoch=EPOCH, grants=((1, grants[0]),)), of=sender(session=2))
    assert [each.id for each in world.sessions.offer_again] == [2]


def test_what_the_worker_should_not_hold_is_cancelled_there() -> None:
    world = World()
    world.join()
    old = Grant(EPOCH - 1, 4)
    world.hello(hello(sender(session=2)))
    world.sent()
    world.report(Held(epoch=EPOCH, grants=((9, old),)), of=sender(session=2))
    (cancel,) = world.sent()
    assert isinstance(cancel, CancelAttempt)
    assert cancel.grant == old


def test_a_heartbeat_is_answered_with_what_is_committed() -> None:
    world = World()
    world.join()
    world.beat(beat(1, 1))
    assert world.sent() == [Heard(heartbeat=1, committed=1)]


def test_a_heartbeat_is_not_answered_while_the_leadership_is_in_doubt() -> None:
    world = World()
    world.join()
    world.beat(beat(1, 1), is_certain=False)
    assert world.sent() == []


def test_nothing_is_committed_behind_a_gap_of_reports() -> None:
    world = World()
    world.join()
    world.report(AttemptReturned(execution_id=5, grant=Grant(1, 1)), number=3)
    world.beat(beat(1, 1))
    assert world.sent() == [Heard(heartbeat=1, committed=1)]
    world.report(AttemptReturned(execution_id=4, grant=Grant(1, 2)), number=2)
    world.beat(beat(2, 2))
    assert world.sent() == [Heard(heartbeat=2, committed=3)]


def test_what_the_worker_has_forgotten_was_committed_by_an_earlier_leader() -> None:
    world = World()
    world.hello(hello())
    world.report(Held(epoch=EPOCH, grants=()), number=41, kept_from=41)
    world.sent()
    world.beat(beat(1, 1))
    assert world.sent() == [Heard(heartbeat=1, committed=41)]


def test_a_message_that_the_worker_should_have_is_sent_again_and_a_newer_one_is_not() -> None:
    world = World()
    world.join()
    world.beat(beat(1, 1), 10.0)
    world.sent(10.0)
    world.sessions.send("w", CancelAttempt(execution_id=1, grant=Grant(1, 1), reason="old"))
    world.sent(11.0)
    world.beat(beat(2, 2), 20.0)
    world.sessions.send("w", CancelAttempt(execution_id=2, grant=Grant(1, 2), reason="new"))
    world.sent(21.0)
    world.beat(beat(3, 2), 22.0)
    again = [each for each in world.sent(22.0) if isinstance(each, CancelAttempt)]
    assert [each.reason for each in again] == ["old"]


def test_a_heartbeat_of_an_older_epoch_is_answered_with_a_welcome() -> None:
    world = World()
    world.join()
    world.beat(beat(1, 40, epoch=EPOCH - 1))
    assert world.sent() == [Welcome()]


def test_a_worker_that_has_seen_a_higher_epoch_makes_the_leader_take_over_above_it() -> None:
    world = World()
    world.join()
    world.beat(beat(1, 1, epoch=EPOCH + 5))
    assert world.sessions.epoch_above == EPOCH + 5


def test_an_epoch_counts_only_with_the_secret_of_its_worker() -> None:
    world = World()
    world.join()
    thief = sender(secret="guess")
    world.hello(hello(sender(session=2, secret="guess"), epoch_seen=EPOCH + 5))
    world.beat(beat(1, 1, of=thief, epoch=EPOCH + 5))
    assert (world.sessions.epoch_above, world.sessions.refused) == (0, 2)
    # A failover can lose a worker together with an epoch.
    world.hello(hello(sender("lost"), epoch_seen=EPOCH + 5))
    assert world.sessions.epoch_above == EPOCH + 5


def test_an_epoch_that_was_never_issued_is_refused() -> None:
    day = 24 * 3600 * 1_000_000
    world = World()
    world.join()
    for number, epoch in enumerate((2**63 - 1, day + 1_000_001), 1):
        world.beat(beat(number, 1, epoch=epoch), now=1.0)
        assert (world.sessions.epoch_above, world.sessions.refused) == (0, number)
    world.beat(beat(3, 1, epoch=day + 1_000_000), now=1.0)
    assert world.sessions.epoch_above == day + 1_000_000


def lost(world: World, now: float) -> list[Input]:
    probes = list(world.sessions.overdue(now))
    assert [each.to for each in probes] == [COMPLETIONS, HEARTBEATS] * bool(probes)
    for each in probes:
        assert isinstance(each.body, Probe)
        world.sessions.probed(each.to, each.body, now)
    return list(world.sessions.lost(now))


def test_a_worker_is_lost_once_a_probe_behind_its_messages_has_come_back() -> None:
    world = World()
    world.join()
    assert lost(world, LEASE - 1) == []
    (gone,) = lost(world, 3 * LEASE)
    assert gone == WorkerGone(worker_id="w", is_counted=True)


def test_a_heartbeat_before_the_probe_keeps_the_worker() -> None:
    world = World()
    world.join()
    first, second = world.sessions.overdue(LEASE + 1)
    assert isinstance(first.body, Probe)
    assert isinstance(second.body, Probe)
    world.sessions.probed(COMPLETIONS, first.body, LEASE + 2)
    world.beat(beat(1, 1), LEASE + 2)
    world.sessions.probed(HEARTBEATS, second.body, LEASE + 3)
    assert not world.sessions.has_lost


def test_a_probe_of_one_queue_loses_nobody() -> None:
    world = World()
    world.join()
    first, _ = world.sessions.overdue(LEASE + 1)
    assert isinstance(first.body, Probe)
    world.sessions.probed(COMPLETIONS, first.body, LEASE + 2)
    world.sessions.probed(COMPLETIONS, first.body, LEASE + 2)
    assert not world.sessions.has_lost


def test_a_loss_soon_after_an_outage_is_not_counted() -> None:
    world = World()
    world.join()
    world.sessions.renew_all(2 * LEASE)
    (gone,) = lost(world, 3 * LEASE + 1)
    assert gone == WorkerGone(worker_id="w", is_counted=False)


def test_a_worker_that_joined_after_an_outage_is_counted_at_once() -> None:
    world = World()
    world.sessions.renew_all(LEASE)
    world.hello(hello(), LEASE + 1)
    world.report(Held(epoch=EPOCH, grants=()))
    (gone,) = lost(world, 2 * LEASE + 2)
    assert gone == WorkerGone(worker_id="w", is_counted=True)


def test_after_an_outage_every_lease_begins_anew() -> None:
    world = World()
    world.join()
    world.sessions.renew_all(2 * LEASE)
    assert lost(world, 2 * LEASE + LEASE - 1) == []


def test_a_heartbeat_of_a_lost_worker_dismisses_it() -> None:
    world = World()
    world.join()
    decide(world.state, lost(world, 3 * LEASE), 0.0)
    world.sent()
    world.beat(beat(9, 1), 3 * LEASE)
    assert world.sent() == [Dismissed()]


def test_a_hello_of_a_lost_worker_dismisses_it_in_the_epoch_that_it_knows() -> None:
    """Its messages would be numbered from 1 again, and it would take them for copies."""
    world = World()
    world.join()
    decide(world.state, lost(world, 3 * LEASE), 0.0)
    world.sent()
    assert world.hello(hello(epoch_seen=EPOCH), 3 * LEASE) == []
    assert world.sent() == [Dismissed()]
    assert world.hello(hello(epoch_seen=EPOCH - 1), 3 * LEASE) != []


def test_a_worker_is_told_that_it_is_lost_before_it_is_gone() -> None:
    """A leader that dies in between has given nothing away; the next one would not know whom to tell."""
    world = World()
    world.join()
    for each in list(world.sessions.overdue(3 * LEASE)):
        assert isinstance(each.body, Probe)
        world.sessions.probed(each.to, each.body, 3 * LEASE)
    assert world.sessions.has_lost
    assert world.sessions.rows.get("w") is not None
    assert world.sent() == [Dismissed()]
    # Whatever it sends now comes too late: it kills what it runs.
    world.beat(beat(9, 1), 3 * LEASE)
    assert world.hello(hello(sender(session=2), epoch_seen=EPOCH), 3 * LEASE) == []
    (gone,) = world.sessions.lost(3 * LEASE)
    assert gone == WorkerGone(worker_id="w", is_counted=True)
    assert world.sessions.rows["w"].gone_at is not None


def test_the_row_of_a_worker_that_is_gone_says_why_and_what_it_held() -> None:
    world = World()
    world.sessions = Sessions(EPOCH, world.state, (), 0.0, offset=1000.0)
    world.join()
    world.granted()
    world.beat(beat(1, 1), 5.0)
    for each in list(world.sessions.overdue(3 * LEASE)):
        assert isinstance(each.body, Probe)
        world.sessions.probed(each.to, each.body, 3 * LEASE)
    list(world.sessions.lost(3 * LEASE))
    row = world.sessions.rows["w"]
    assert (row.gone_at, row.gone_why, row.held_ids) == (1000 + 3 * LEASE, "lost", (1,))
    assert (row.registered_at, row.heard_at) == (1000.0, 1005.0)


def test_a_worker_that_left_has_stopped_and_held_nothing() -> None:
    world = World()
    world.join()
    world.report(Leaving())
    row = world.sessions.rows["w"]
    assert (row.gone_why, row.held_ids) == ("stopped", ())


def test_what_a_worker_says_of_itself_is_written_and_kept_over_its_sessions() -> None:
    world = World()
    world.hello(replace(hello(), about={"pid": 7}))
    list(world.sessions.drain("w", 3.0, is_draining=True))
    world.beat(replace(beat(1, 1), is_taking=False, not_ready="broker: refused"), 4.0)
    row = world.sessions.rows["w"]
    assert (row.about, row.not_ready, row.draining_at, row.draining_count) == (
        {"pid": 7}, "broker: refused", 3.0, 0,
    )  # fmt: skip
    world.hello(hello(sender(session=2)), 9.0)
    row = world.sessions.rows["w"]
    assert (row.registered_at, row.heard_at, row.draining_at, row.not_ready) == (0.0, 9.0, 3.0, None)


def test_a_leaving_waits_for_the_earlier_reports_of_its_worker() -> None:
    world = World()
    world.join()
    grant = world.granted()[0]
    assert world.report(Leaving(), number=3) == []
    end, gone = world.report(ended(1, grant), number=2)
    assert isinstance(end, Ended)
    assert gone == WorkerGone(worker_id="w", is_counted=False)


def test_a_report_that_comes_twice_changes_nothing_the_second_time() -> None:
    world = World()
    world.join()
    grant = world.granted()[0]
    (end,) = world.report(ended(1, grant), number=2)
    assert isinstance(end, Ended)
    assert world.report(ended(1, grant), number=2) == []
    assert len(world.sessions.take_stale()) == 1


def test_messages_of_an_older_session_are_ignored() -> None:
    world = World()
    world.hello(hello(sender(session=2)))
    world.sent()
    assert world.hello(hello(sender(session=1))) == []
    assert world.report(Held(epoch=EPOCH, grants=()), of=sender(session=1)) == []
    assert world.beat(beat(1, 1, of=sender(session=1))) == []
    assert world.sent() == []


def test_a_drained_worker_takes_nothing_and_keeps_what_it_has() -> None:
    world = World()
    world.join()
    world.granted()
    changes = list(world.sessions.drain("w", 20.0, is_draining=True))
    decide(world.state, changes, 1.0)
    assert not world.granted()
    assert list(world.state.workers["w"].held) == [1]


def test_a_returned_attempt_is_first_again() -> None:
    world = World()
    world.join()
    grants = world.granted(3)
    (returned,) = world.report(AttemptReturned(execution_id=1, grant=grants[0]), number=2)
    assert isinstance(returned, Returned)
    assert sorted(world.state.workers["w"].held) == [2], "it may return this one too"
    world.report(AttemptStarted(execution_id=2, grant=grants[1], at=0.0), number=3)
    assert sorted(world.state.workers["w"].held) == [1, 2]
    assert world.state.executions[1].grant != grants[0]


def test_a_new_epoch_of_the_same_leader_begins_its_numbers_again_with_a_welcome() -> None:
    world = World()
    world.join()
    world.sessions.send("w", CancelAttempt(execution_id=1, grant=Grant(1, 1), reason="x"))
    world.sessions.raise_epoch(EPOCH + 1)
    messages = [each.body for each in world.sessions.take_out(0.0)]
    assert all(isinstance(each, ToSession) for each in messages)
    assert [(m.epoch, m.number, type(m.body)) for m in messages if isinstance(m, ToSession)] == [
        (EPOCH + 1, 1, Welcome),
        (EPOCH + 1, 2, CancelAttempt),
    ]


def test_a_worker_is_offered_nothing_before_it_has_said_what_it_holds_in_this_epoch() -> None:
    world = World()
    world.hello(hello())
    assert not world.sessions.may_be_offered("w")
    world.report(Held(epoch=EPOCH, grants=()))
    assert world.sessions.may_be_offered("w")
    world.sessions.raise_epoch(EPOCH + 1)
    assert not world.sessions.may_be_offered("w")
    assert not world.sessions.may_be_offered("unknown")
    answer = Report(
        sender=sender(), number=2, kept_from=1, epoch_seen=EPOCH + 1, body=Held(epoch=EPOCH + 1, grants=())
    )
    (changed,) = world.sessions.report(answer, 0.0, None)
    assert isinstance(changed, WorkerChanged)
    assert changed.is_answer, "it hears again of what changed: the last epoch's messages may be lost"


def test_a_repeated_hello_is_welcomed_under_the_next_number() -> None:
    world = World()
    world.hello(hello())
    world.hello(hello())
    numbers = [each.body.number for each in world.sessions.take_out(0.0) if isinstance(each.body, ToSession)]
    assert numbers == [1, 2]


def test_a_probe_that_does_not_come_back_is_sent_again() -> None:
    world = World()
    world.join()
    assert list(world.sessions.overdue(LEASE + 1))
    assert not list(world.sessions.overdue(LEASE + 2))
    assert list(world.sessions.overdue(3 * LEASE))


def test_a_copy_of_an_answer_to_the_welcome_is_not_answered_again() -> None:
    world = World()
    world.hello(hello())
    held = Held(epoch=EPOCH, grants=((9, Grant(1, 1)),))
    world.report(held, number=1)
    assert any(isinstance(each, CancelAttempt) for each in world.sent())
    world.report(held, number=1)
    assert world.sent() == []
