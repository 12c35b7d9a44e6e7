"""What the lease permits, and what is sent to keep it."""

import pytest

from tests.unit.worker_core.world import World, grant
from turnstile.common.worker_protocol import CancelAttempt, Dismissed, Heard, Heartbeat, Held
from turnstile.worker.core.lease import Lease
from turnstile.worker.fence import Standing, Terms

TERMS = Terms(lease_seconds=30.0, heartbeat_seconds=3.0)
CERTAIN_SECONDS = 24.0


def answered(at: float = 100.0) -> Lease:
    lease = Lease(TERMS)
    lease.answered(lease.sending(at))
    return lease


def test_the_lease_counts_from_the_sending_of_the_answered_heartbeat() -> None:
    lease = answered(100.0)
    assert lease.standing(100.0 + CERTAIN_SECONDS - 0.1) is Standing.CERTAIN
    assert lease.standing(100.0 + CERTAIN_SECONDS) is Standing.OVER


def test_an_answer_to_an_earlier_heartbeat_renews_from_the_sending_of_that_one() -> None:
    lease = Lease(TERMS)
    first, _ = lease.sending(100.0), lease.sending(110.0)
    lease.answered(first)
    assert lease.evidence.renewed_at == 100.0


def test_a_late_answer_to_an_earlier_heartbeat_shortens_nothing() -> None:
    lease = Lease(TERMS)
    first, second = lease.sending(100.0), lease.sending(110.0)
    lease.answered(second)
    lease.answered(first)
    lease.sending(120.0)
    lease.answered(99)
    assert lease.evidence.renewed_at == 110.0


def test_the_end_is_final() -> None:
    lease = answered(100.0)
    number = lease.sending(110.0)
    assert lease.standing(130.0) is Standing.OVER
    lease.answered(number)
    lease.reached(130.0)
    lease.spared(200.0)
    assert lease.standing(130.0) is Standing.OVER


def test_the_word_of_an_executor_makes_it_doubt_until_its_end_without_the_margin() -> None:
    lease = answered(100.0)
    lease.spared(200.0)
    lease.spared(150.0)
    assert lease.standing(193.9) is Standing.IN_DOUBT
    assert lease.standing(194.0) is Standing.OVER


def test_heartbeats_that_nobody_answers_are_not_collected_for_ever() -> None:
    lease = Lease(TERMS)
    for at in range(5000):
        lease.sending(float(at))
    assert len(lease._sent_at) == 1000


# What is sent.


async def test_heartbeats_are_numbered_and_sent_at_their_interval(world: World) -> None:
    await world.passes(30)
    numbers = [each.number for each in world.broker.heartbeats]
    assert numbers == list(range(1, len(numbers) + 1))
    pauses = [
        after - before
        for before, after in zip(world.broker.heartbeats_at[2:], world.broker.heartbeats_at[3:], strict=False)
    ]
    assert all(pause == pytest.approx(3.0, abs=0.01) for pause in pauses)


async def test_every_message_carries_the_id_the_session_and_the_secret(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    senders = {each.sender for each in world.broker.hellos}
    senders |= {each.sender for each in world.broker.heartbeats}
    senders |= {each.sender for each in world.broker.reports}
    (sender,) = senders
    assert (sender.worker_id, sender.session, sender.secret) == ("w1", 1, "secret2")
    assert "secret2" not in repr(sender)


async def test_nothing_starts_before_a_heartbeat_was_answered(make_world: type[World]) -> None:
    world = make_world()
    world.is_answering = False
    await world.serve()
    await world.offer(1)
    await world.passes(60)
    assert world.runner.started == []
    world.is_answering = True
    await world.passes(4)
    assert world.runner.started == [1]


async def test_in_doubt_what_runs_continues_and_nothing_starts(world: World) -> None:
    await world.offer(1)
    world.is_answering = False
    await world.passes(300)
    await world.offer(2)
    await world.passes(300)
    assert not world.is_certain()
    assert not world.is_over()
    assert world.runner.started == [1]
    assert not world.runner.of(1).kills
    await world.end(1)
    assert world.ends() == [(1, "completed")]
    assert world.runner.started == [1]
    world.is_answering = True
    await world.passes(4)
    assert world.runner.started == [1, 2]


async def test_in_doubt_a_cancel_kills_at_once(world: World) -> None:
    await world.offer(1)
    world.is_answering = False
    await world.passes(60)
    await world.cancel(1)
    assert world.runner.of(1).kills == 1
    assert world.ends() == [(1, "cancelled")]


async def test_doubt_ends_the_grace_of_a_cancelled_run(make_world: type[World]) -> None:
    world = await make_world(grace_seconds=1000.0).serve()
    await world.offer(1)
    await world.cancel(1)
    assert world.runner.of(1).asked
    assert not world.runner.of(1).kills
    world.is_answering = False
    await world.passes(40)
    assert world.runner.of(1).kills == 1
    assert not world.is_over()


async def test_probes_begin_only_when_an_answer_is_late(world: World) -> None:
    await world.passes(100)
    assert world.broker.probes == 0
    world.is_answering = False
    await world.passes(20)
    assert world.broker.probes > 0


async def test_without_answers_and_probes_it_is_over_before_the_lease_ends(world: World) -> None:
    await world.offer(1, 2)
    world.is_answering = world.broker.is_probe_returned = world.is_welcoming = False
    answered_at = world.broker.heartbeats_at[-1]
    await world.passes(answered_at + CERTAIN_SECONDS - 0.1 - world.clock.monotonic())
    assert not world.runner.of(1).kills
    await world.passes(0.6)
    assert world.runner.of(1).kills == world.runner.of(2).kills == 1


async def test_over_forgets_everything_and_registers_anew_under_a_new_id_and_secret(world: World) -> None:
    await world.offer(1)
    await world.offer(2, queue="r", at_once=0)
    await world.end(1)
    world.is_committing = world.is_answering = world.broker.is_probe_returned = False
    await world.offer(3)
    await world.passes(40)
    world.is_answering = True
    await world.passes(10)
    hello = world.broker.hellos[-1]
    assert (hello.sender.worker_id, hello.sender.secret) == ("w3", "secret4")
    assert world.ends() == [(1, "completed")]
    assert world.returns() == []
    of_new = [each.body for each in world.broker.reports if each.sender.worker_id == "w3"]
    assert {each.grants for each in of_new if isinstance(each, Held)} == {()}
    assert all(isinstance(each, Held) for each in of_new)
    assert world.runner.started == [1, 3]


async def test_what_ends_after_the_lease_is_not_reported_even_if_the_process_was_stopped(
    world: World,
) -> None:
    await world.offer(1)
    world.clock.stopped_seconds += 60.0
    await world.end(1)
    await world.passes(10)
    assert world.ends() == []
    assert world.is_over()


async def test_a_process_that_was_stopped_does_not_publish_what_it_kept(world: World) -> None:
    world.broker.is_silent, world.is_committing = True, False
    await world.offer(1)
    await world.end(1)
    await world.passes(0.05)
    world.broker.reports.clear()
    world.clock.stopped_seconds += 60.0
    await world.passes(10)
    assert [each for each in world.broker.reports if each.sender.worker_id == "w1"] == []


async def test_a_worker_that_cannot_kill_what_it_runs_ends_its_process(world: World) -> None:
    world.runner.is_mortal = False
    await world.offer(1)
    world.is_answering = world.broker.is_probe_returned = False
    await world.passes(40)
    assert world.task is not None
    assert world.task.result().value == "not_stopped"


async def test_a_dismissed_worker_kills_at_once_and_registers_anew(world: World) -> None:
    """What it runs may run elsewhere as soon as the message is confirmed: the lease's next look is late."""
    await world.offer(1)
    world.send(Dismissed())
    await world.passes(0.01)
    assert world.runner.of(1).kills == 1
    await world.passes(1)
    assert world.is_over()
    assert world.is_certain()


async def test_a_probe_through_a_session_that_no_leader_knows_proves_nothing(world: World) -> None:
    await world.offer(1)
    world.is_answering = world.is_welcoming = False
    world.broker.queues[-1].close()
    await world.passes(30)
    assert world.broker.probes == 0
    assert world.is_over()
    assert world.runner.of(1).kills == 1


async def test_executors_over_http_keep_runs_alive_while_the_broker_is_out(world: World) -> None:
    await world.offer(1)
    world.broker.is_down = True
    world.broker.queues[-1].close()
    world.executors.seconds = 20.0
    await world.passes(600)
    assert not world.is_over()
    assert not world.runner.of(1).kills
    world.broker.is_down = False
    await world.passes(10)
    assert world.is_certain()
    world.broker.is_down, world.executors.seconds = True, 0.0
    world.broker.queues[-1].close()
    await world.passes(30)
    assert world.is_over()
    assert world.runner.of(1).kills == 1


async def test_an_outage_of_the_broker_shorter_than_the_lease_costs_nothing(world: World) -> None:
    await world.offer(1)
    world.broker.is_down = True
    world.broker.queues[-1].close()
    await world.passes(18)
    world.broker.is_down = False
    await world.passes(5)
    assert world.is_certain()
    assert not world.is_over()
    await world.end(1)
    assert world.ends() == [(1, "completed")]


async def test_an_answer_of_a_lower_epoch_renews_nothing(world: World) -> None:
    world.send(Heard(heartbeat=0, committed=0), epoch=5)
    await world.passes()
    world.epoch = 4
    await world.passes(60)
    assert not world.is_certain()


async def test_late_heartbeats_say_hello_as_well(world: World) -> None:
    world.is_answering = world.is_welcoming = False
    assert len(world.broker.hellos) == 1
    await world.passes(60)
    assert 3 <= len(world.broker.hellos) < 9
    assert isinstance(world.broker.heartbeats[-1], Heartbeat)


async def test_a_cancel_for_what_never_came_does_not_need_a_lease(world: World) -> None:
    world.is_answering = False
    await world.passes(60)
    world.send(CancelAttempt(execution_id=9, grant=grant(9), reason="r"))
    await world.passes()
    assert world.ends() == [(9, "cancelled")]
