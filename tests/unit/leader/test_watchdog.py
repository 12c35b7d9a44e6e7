"""What the watchdog asks of workers, by the leader's own clock (P7, P8)."""

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import CancelAttempt, Held, Hello, Report, Sender, ToSession
from turnstile.executor.leader.sessions import Sessions
from turnstile.executor.leader.watchdog import GRACE_SECONDS, TICK_SECONDS, Watchdog
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.definitions import Action
from turnstile.executor.queue_manager.inputs import Admit, Cancel, DefineAction, Overdue, Started
from turnstile.executor.queue_manager.state import State

EPOCH = 7
OF = Sender(worker_id="w", session=1, secret="s")


def running(timeout_seconds: float | None = None) -> tuple[State, Sessions, Grant]:
    """Return a worker that runs execution 1."""
    state = State(epoch=EPOCH)
    decide(state, [DefineAction(action=Action(ref="a", timeout_seconds=timeout_seconds))], 0.0)
    sessions = Sessions(EPOCH, state, (), 0.0)
    hello = Hello(
        sender=OF, name="worker", pools=("default",), actions=None, concurrency=2, lease_seconds=30.0,
        epoch_seen=0,
    )  # fmt: skip
    decide(state, list(sessions.hello(hello, 0.0)), 0.0)
    held = Report(sender=OF, number=1, kept_from=1, epoch_seen=EPOCH, body=Held(epoch=EPOCH, grants=()))
    decide(state, list(sessions.report(held, 0.0, held)), 0.0)
    grant = decide(state, [Admit(action_ref="a")], 1.0).granted[0].grant
    decide(state, [Started(execution_id=1, grant=grant, at=1.0)], 1.0)
    sessions.take_out(0.0)
    return state, sessions, grant


def cancels(sessions: Sessions) -> list[CancelAttempt]:
    bodies = [each.body.body for each in sessions.take_out(0.0) if isinstance(each.body, ToSession)]
    return [body for body in bodies if isinstance(body, CancelAttempt)]


def test_a_cancel_that_was_lost_with_its_leader_is_sent_by_the_next_one() -> None:
    state, sessions, grant = running()
    decide(state, [Cancel(execution_id=1, reason="no need", action_ref="a", key="", priority=3)], 2.0)
    watchdog = Watchdog()
    assert not list(watchdog.inputs(state, sessions, 10.0))
    assert cancels(sessions) == [CancelAttempt(execution_id=1, grant=grant, reason="no need")]
    # Once is enough: what is sent to a session is sent again until it has arrived.
    assert not list(watchdog.inputs(state, sessions, 10.0 + TICK_SECONDS))
    assert not cancels(sessions)


def test_an_attempt_that_is_not_stopped_is_ended() -> None:
    state, sessions, grant = running()
    decide(state, [Cancel(execution_id=1, reason="no need", action_ref="a", key="", priority=3)], 2.0)
    watchdog = Watchdog()
    list(watchdog.inputs(state, sessions, 10.0))
    assert not list(watchdog.inputs(state, sessions, 10.0 + GRACE_SECONDS))
    after = 11.0 + GRACE_SECONDS
    assert list(watchdog.inputs(state, sessions, after)) == [Overdue(execution_id=1, grant=grant)]


def test_an_attempt_that_ran_too_long_is_cancelled_as_timed_out() -> None:
    state, sessions, grant = running(timeout_seconds=5.0)
    watchdog = Watchdog()
    assert not list(watchdog.inputs(state, sessions, 10.0))
    assert not list(watchdog.inputs(state, sessions, 15.0))
    assert not cancels(sessions)
    assert not list(watchdog.inputs(state, sessions, 16.0 + GRACE_SECONDS))
    (cancel,) = cancels(sessions)
    assert (cancel.grant, cancel.status) == (grant, Status.TIMEOUT)
