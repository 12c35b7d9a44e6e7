"""Applies what arrives from the leader at once: offers, cancels, recalls, answers.

In: the numbered messages of a session. Out: changes of the waiting list, stops of attempts, reports. All of
them may come twice, late, in another order or never: offers and cancels are known by their grant, recalls by
their barrier, and each repetition of an offer is answered. Offers count only in the order of their numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from turnstile.common.crash_points import CrashPoint, reached
from turnstile.common.domain.identifiers import Grant
from turnstile.common.worker_protocol import (
    CancelAttempt,
    Dismissed,
    Heard,
    Held,
    Offer,
    Offers,
    Recall,
    ToSession,
    Welcome,
)
from turnstile.worker.core.attempt import Attempts, returned, unstarted_end
from turnstile.worker.core.lease import Lease
from turnstile.worker.core.ports import Clock
from turnstile.worker.core.reporter import Outbox
from turnstile.worker.core.session import Session
from turnstile.worker.core.waiting import Waiting, WaitingList
from turnstile.worker.fence import Standing


class Receiver:
    """Applies the leader's messages to one worker."""

    def __init__(
        self,
        clock: Clock,
        session: Session,
        *,
        lease: Lease,
        waiting: WaitingList,
        attempts: Attempts,
        outbox: Outbox,
        hasten: Callable[[], None],
        on_drain: Callable[[], None],
        on_stored: Callable[[Sequence[Mapping[str, Any]], Sequence[str]], None],
    ) -> None:
        """`hasten` sends a heartbeat now: the leader waits for the confirmation of a message.

        `on_drain` is called when an operator drains this worker, `on_stored` with definitions of actions that
        the installation has otherwise, and why it refused others.
        """
        self._clock = clock
        self._session = session
        self._lease = lease
        self._waiting = waiting
        self._attempts = attempts
        self._outbox = outbox
        self._hasten = hasten
        self._on_drain = on_drain
        self._on_stored = on_stored
        self.refused = 0
        """Messages of leaders that are over."""

    def receive(self, messages: Sequence[ToSession]) -> None:
        """Apply messages in the order in which they arrived, then start what may start."""
        for message in messages:
            if self._lease.standing(self._clock.monotonic()) is Standing.OVER:
                return
            epoch = self._session.epoch
            if not self._session.admits(message):
                self.refused += 1
                continue
            if self._session.epoch > epoch:
                # The last leader may have heard what it did not commit.
                self._outbox.repeat()
            self._apply(message)
        self._attempts.start_ready()

    def _apply(self, message: ToSession) -> None:
        received = self._session.received
        if isinstance(message.body, Offers) and message.number > received.upto + 1:
            # Something that starts earlier may be missing. The leader sends both again, in order.
            self._hasten()
            return
        is_copy = not received.add(message.number)
        if received.has_gap:
            self._hasten()
        match message.body:
            case Welcome() as body:
                self._welcome()
                if not is_copy:
                    self._on_stored(body.stored, body.refused)
            case Offers() as body:
                self._offers(body, is_copy=is_copy)
                reached(CrashPoint.OFFERS_RECEIVED)
            case CancelAttempt() as body:
                self._cancel(body)
            case Recall() as body:
                for offer in self._waiting.recall(body.queue, body.barrier):
                    self._return(offer, "recalled")
                self._attempts.answer_all(body.queue)
                self._hasten()
            case Heard() as body:
                self._lease.answered(body.heartbeat)
                self._outbox.committed(body.committed, self._clock.monotonic())
                if body.is_draining:
                    self._on_drain()
            case Dismissed():
                self._lease.lose()
                # At once: what it runs may run elsewhere as soon as this message is confirmed.
                self._attempts.lose_all()
            case _:
                assert_never(message.body)

    def _welcome(self) -> None:
        """Say what this worker holds, behind everything that was reported before."""
        session, outbox = self._session, self._outbox
        if not session.is_welcome:
            self._hasten()
        session.welcome()
        outbox.repeat()
        if not outbox.has_answered(session):
            held = (*outbox.held(), *self._attempts.held(), *self._waiting.held())
            outbox.add(Held(epoch=session.epoch, grants=held))

    def _offers(self, body: Offers, *, is_copy: bool) -> None:
        if not is_copy and self._waiting.limit(body.queue, body.at_once):
            self._hasten()
        now = self._clock.monotonic()
        for offer in body.offers:
            if self._is_answered(offer.execution_id, offer.grant) or is_copy:
                continue
            seconds = offer.expires_in_seconds
            waiting = Waiting(body.queue, offer, float("inf") if seconds is None else now + seconds)
            if not self._session.is_taking:
                self._refuse(body.queue, offer, "its worker drains")
            elif self._session.not_ready is not None:
                self._refuse(body.queue, offer, "its worker is not ready")
            elif not self._waiting.put(waiting):
                self._return(offer, "recalled")

    def _is_answered(self, execution_id: int, grant: Grant) -> bool:
        """Return whether a grant is known here, and report once more what is known of it."""
        if grant in self._waiting or self._outbox.answer(execution_id, grant):
            return True
        if grant in self._attempts:
            self._attempts.answer(grant)
            return True
        return False

    def _cancel(self, body: CancelAttempt) -> None:
        """Stop an attempt, or end it unstarted even before its offer. What has ended needs no answer."""
        if body.grant in self._attempts:
            self._attempts.cancel(body)
        elif body.grant not in self._outbox:
            self._waiting.remove(body.grant)
            self._outbox.add(unstarted_end(body, body.status, body.reason))

    def return_all(self, reason: str) -> None:
        """Return everything that has not started."""
        for offer in self._waiting.clear():
            self._return(offer, reason)

    def _refuse(self, queue: str, offer: Offer, reason: str) -> None:
        for each in (offer, *self._waiting.close(queue, offer.grant)):
            self._return(each, reason)

    def _return(self, offer: Offer, reason: str) -> None:
        self._outbox.add(returned(offer, reason))
