"""One attempt: every way in which it can end is exactly one end or return."""

from collections.abc import Callable

import pytest

from tests.unit.worker_core.world import WALL, World, grant, offer
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    CancelAttempt,
    Offers,
)
from turnstile.worker.core.attempt import Attempt, Stop, end_of
from turnstile.worker.core.outcomes import Completed, Failed, Failure
from turnstile.worker.core.ports import CutShort, NotStarted, RunEnd


def ended_as(stop: Stop | None, end: RunEnd) -> AttemptEnded | AttemptReturned:
    attempt = Attempt(offer=offer(1), queue="q", began=0.0, started_at=1.0, stop=stop)
    attempt.run = object()  # type: ignore[assignment]
    return end_of(attempt, end, 2.0)


DONE = Completed(result_json='{"a": 1}')
WRONG = Failed(failure=Failure(type="E", message="m"), retryable=True, delay_seconds=5.0)


def test_a_result_is_reported_as_text() -> None:
    end = ended_as(None, DONE)
    assert isinstance(end, AttemptEnded)
    assert (end.status, end.result, end.error) == (Status.COMPLETED, b'{"a": 1}', None)
    assert (end.started_at, end.completed_at) == (1.0, 2.0)


def test_a_failure_says_whether_and_when_it_may_be_retried() -> None:
    end = ended_as(None, WRONG)
    assert isinstance(end, AttemptEnded)
    assert (end.status, end.error, end.is_retryable, end.delay_seconds) == (
        Status.FAILED, ("E", "m"), True, 5.0,
    )  # fmt: skip


def test_what_the_runner_could_not_start_goes_back_unstarted() -> None:
    end = ended_as(None, NotStarted(reason="no process"))
    assert isinstance(end, AttemptReturned)
    assert (end.had_started, end.reason) == (False, "no process")


def test_what_the_end_of_the_process_cut_short_goes_back_as_started() -> None:
    end = ended_as(None, CutShort(reason="killed"))
    assert isinstance(end, AttemptReturned)
    assert (end.had_started, end.reason) == (True, "killed")


@pytest.mark.parametrize("end", [DONE, WRONG, NotStarted(reason="n"), CutShort(reason="c")])
def test_once_a_stop_was_requested_it_is_the_outcome(end: RunEnd) -> None:
    cancelled = ended_as(Stop("cancel", "r"), end)
    timed_out = ended_as(Stop("timeout", "r"), end)
    returned = ended_as(Stop("drain", "r"), end)
    assert isinstance(cancelled, AttemptEnded)
    assert cancelled.status is Status.CANCELLED
    assert isinstance(timed_out, AttemptEnded)
    assert timed_out.status is Status.TIMEOUT
    assert not cancelled.is_retryable
    assert not timed_out.is_retryable
    assert isinstance(returned, AttemptReturned)
    assert returned.had_started


# With a runner.


async def test_an_attempt_is_received_run_and_reported(world: World) -> None:
    await world.offer(1)
    await world.end(1)
    (end,) = world.bodies(AttemptEnded)
    assert end.started_at is not None
    assert end.completed_at is not None
    assert WALL < end.started_at <= end.completed_at


@pytest.mark.parametrize("set_by_seconds", [-3600.0, 3600.0])
async def test_an_attempt_takes_its_time_though_the_clock_of_the_machine_is_set(
    world: World, set_by_seconds: float
) -> None:
    await world.offer(1)
    await world.passes(2.0)
    world.clock.set_by_seconds = set_by_seconds
    await world.end(1)
    (end,) = world.bodies(AttemptEnded)
    assert end.started_at is not None
    assert end.completed_at is not None
    assert end.completed_at - end.started_at == pytest.approx(2.0, abs=0.5)


async def test_no_run_seems_to_start_before_the_end_that_it_follows(world: World) -> None:
    world.clock.read_seconds = 0.001
    await world.offer(*range(1, 6), at_once=4)
    await world.end(4)
    await world.end(5)
    before, after = world.bodies(AttemptEnded)
    assert before.completed_at is not None
    assert after.started_at is not None
    assert before.completed_at <= after.started_at


async def test_the_start_is_reported_only_of_what_runs_longer_than_50_ms(world: World) -> None:
    await world.offer(1, 2)
    await world.passes(0.04)
    await world.end(1)
    await world.passes(0.1)
    assert [each.execution_id for each in world.bodies(AttemptStarted)] == [2]
    await world.passes(10)
    assert len(world.bodies(AttemptStarted)) == 1


async def test_the_next_one_starts_the_moment_one_ends(world: World) -> None:
    await world.offer(1, 2, 3, at_once=1)
    assert world.runner.started == [1]
    world.runner.of(1).end()
    await world.passes(0)
    assert world.runner.started == [1, 2]


async def test_what_expired_before_its_start_ends_without_starting(world: World) -> None:
    await world.offer(1, at_once=1)
    await world.offer(2, 3, at_once=1, expires_in_seconds=5.0)
    await world.offer(4, at_once=1, expires_in_seconds=50.0)
    await world.passes(6)
    await world.end(1)
    assert world.runner.started == [1, 4]
    assert world.ends() == [(1, "completed"), (2, "expired"), (3, "expired")]
    assert [each.started_at for each in world.bodies(AttemptEnded)][1:] == [None, None]


async def test_a_copy_of_an_offer_does_not_prolong_its_time_to_live(world: World) -> None:
    await world.offer(1, at_once=1)
    await world.offer(2, at_once=1, expires_in_seconds=5.0)
    await world.passes(4)
    await world.offer(2, at_once=1, expires_in_seconds=5.0)
    await world.passes(2)
    await world.end(1)
    assert world.ends()[-1] == (2, "expired")


async def test_a_run_beyond_its_timeout_is_asked_then_killed(world: World) -> None:
    await world.offer(1, timeout_seconds=10.0)
    run = world.runner.of(1)
    await world.passes(9.9)
    assert not run.asked
    await world.passes(0.2)
    assert run.asked
    assert not run.kills
    await world.passes(5)
    assert world.runner.of(1).kills == 1
    (end,) = world.bodies(AttemptEnded)
    assert end.status is Status.TIMEOUT
    assert end.error is not None
    assert end.error[1] == (
        "it ran longer than its timeout of 10s and was stopped after 15.0s; "
        "it did not end within the grace period of 5s and was killed"
    )


async def test_a_run_that_ends_when_it_is_asked_is_not_killed(world: World) -> None:
    world.runner.is_obedient = True
    await world.offer(1, timeout_seconds=0.01)
    await world.passes(20)
    assert world.ends() == [(1, "timeout")]
    assert not world.runner.of(1).kills
    assert world.bodies(AttemptStarted) == []


async def test_a_cancel_asks_then_kills(world: World) -> None:
    await world.offer(1)
    await world.cancel(1)
    await world.cancel(1)
    run = world.runner.of(1)
    assert run.asked == ["asked"]
    assert not run.kills
    await world.passes(5.1)
    assert world.runner.of(1).kills == 1
    assert world.ends() == [(1, "cancelled")]


async def test_a_leader_that_enforces_a_timeout_says_so_with_its_cancel(world: World) -> None:
    await world.offer(1)
    cancel = CancelAttempt(execution_id=1, grant=grant(1), reason="too long", status=Status.TIMEOUT)
    world.send(cancel)
    await world.passes(6)
    assert world.ends() == [(1, "timeout")]


async def test_a_cancel_of_what_has_not_started_ends_it_without_starting(world: World) -> None:
    await world.offer(1, 2, at_once=1)
    await world.cancel(2)
    await world.end(1)
    assert world.runner.started == [1]
    assert world.ends() == [(2, "cancelled"), (1, "completed")]


async def test_a_cancel_in_the_same_batch_as_its_offer_ends_it_without_starting(world: World) -> None:
    offers = Offers(queue="q", at_once=None, offers=(offer(1),))
    world.send(offers, CancelAttempt(execution_id=1, grant=grant(1), reason="r"))
    await world.passes()
    assert world.runner.started == []
    assert world.ends() == [(1, "cancelled")]


async def test_a_cancel_that_arrives_before_its_offer_ends_it(world: World) -> None:
    await world.cancel(1)
    assert world.ends() == [(1, "cancelled")]
    await world.offer(1)
    assert world.runner.started == []


async def test_a_cancelled_run_that_cannot_be_killed_is_reported_and_frees_its_place(world: World) -> None:
    world.runner.is_mortal = False
    await world.offer(1, 2, at_once=1)
    await world.cancel(1)
    await world.passes(5.5)
    assert world.ends() == []
    await world.passes(1)
    (end,) = world.bodies(AttemptEnded)
    assert end.error == ("Cancelled", "asked; it did not end within the grace period of 5s and still runs")
    assert world.runner.started == [1, 2]
    await world.end(1)
    assert world.ends() == [(1, "cancelled")]


async def test_an_error_of_the_runner_is_a_failure_of_the_attempt(world: World) -> None:
    world.runner.error = ValueError("cannot start")
    await world.offer(1, 2, at_once=1)
    await world.passes()
    end, _ = world.bodies(AttemptEnded)
    assert (end.status, end.error, end.is_retryable) == (
        Status.FAILED, ("ValueError", "cannot start"), True,
    )  # fmt: skip
    assert world.ends() == [(1, "failed"), (2, "failed")]


async def test_nothing_starts_while_what_is_kept_is_above_its_bound(make_world: Callable[..., World]) -> None:
    world = await make_world(kept_bytes_max=2000).serve()
    world.is_committing = False
    await world.offer(1, 2, at_once=1)
    world.runner.of(1).end(Completed(result_json='"' + "x" * 2000 + '"'))
    await world.passes(10)
    assert world.runner.started == [1]
    world.is_committing = True
    world.commit(world.broker.reports)
    await world.passes(4)
    assert world.runner.started == [1, 2]


async def test_deadlines_of_what_has_ended_are_not_collected_for_ever(world: World) -> None:
    for number in range(1, 500):
        await world.offer(number, timeout_seconds=86400.0)
        await world.passes(0.06)
        await world.end(number)
    assert world.process.worker is not None
    assert len(world.process.worker.attempts._plans) < 100
