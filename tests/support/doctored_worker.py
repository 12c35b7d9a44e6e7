"""A worker of this project with one fault: `python -m tests.support.doctored_worker FAULT`.

Each fault is a mistake that the author of a worker can make: the conformance kit must find it.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any, Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import (
    AttemptEnded,
    AttemptReturned,
    AttemptStarted,
    Heartbeat,
    Held,
    Hello,
    Leaving,
)
from turnstile.worker import amqp, cli, hosted
from turnstile.worker.core import attempt, lease, receiver, reporter, session, waiting
from turnstile.worker.core.config import WorkerConfig
from turnstile.worker.fence import Standing

FAULTS: Final[dict[str, tuple[str, Callable[[], None]]]] = {}
"""The case that finds each fault, and what plants it."""


def found_by(case: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def declare(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = (case, plant)
        return plant

    return declare


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function; `around` gets the one before as its first argument."""
    before = getattr(owner, name)
    setattr(owner, name, lambda *given, **options: around(before, *given, **options))


def without(kind: type[Any]) -> None:
    """Never report one kind of thing."""

    def add(before: Any, self: Any, body: Any, **how: Any) -> None:
        if not isinstance(body, kind):
            before(self, body, **how)

    wrap(reporter.Outbox, "add", add)


def change(kind: type[Any], **fields: Any) -> None:
    """Report one kind of thing with other values."""

    def add(before: Any, self: Any, body: Any, **how: Any) -> None:
        before(self, replace(body, **fields) if isinstance(body, kind) else body, **how)

    wrap(reporter.Outbox, "add", add)


@found_by("at-once-is-kept")
def starts_one_too_many() -> None:
    def may_start(queue: Any) -> bool:
        return bool(queue.line) and (queue.at_once is None or queue.running <= queue.at_once)

    waiting._Queue.may_start = property(may_start)  # type: ignore[assignment,method-assign]


@found_by("at-once-is-kept")
def starts_one_after_another() -> None:
    wrap(waiting.WaitingList, "limit", lambda limit, self, name, _: limit(self, name, 1))


@found_by("order-within-a-queue")
def starts_in_the_order_of_arrival() -> None:
    waiting.heappush = list.append  # type: ignore[attr-defined]
    waiting.heappop = lambda line: line.pop(0)  # type: ignore[attr-defined]


@found_by("concurrency-is-kept")
def has_more_slots_than_it_says() -> None:
    wrap(waiting.WaitingList, "__init__", lambda init, self, concurrency: init(self, concurrency + 1))


@found_by("recall-returns-what-waits")
def ignores_recalls() -> None:
    wrap(waiting.WaitingList, "recall", lambda *_: [])


@found_by("recall-holds-for-late-offers")
def forgets_the_barrier() -> None:
    def recall(before: Any, self: Any, name: str, barrier: Grant) -> Any:
        found = before(self, name, barrier)
        self._queue(name).barrier = Grant(0, 0)
        return found

    wrap(waiting.WaitingList, "recall", recall)


@found_by("grants-are-compared-as-numbers")
def compares_grants_as_texts() -> None:
    Grant.__le__ = lambda one, other: str(one) <= str(other)  # type: ignore[method-assign]


@found_by("offer-runs-and-ends")
def reports_twice_with_different_outcomes() -> None:
    def add(before: Any, self: Any, body: Any, **how: Any) -> None:
        before(self, body, **how)
        if isinstance(body, AttemptEnded):
            before(self, replace(body, status=Status.FAILED, error=("Error", "no")), **how)

    wrap(reporter.Outbox, "add", add)


@found_by("heartbeats-are-regular")
def sends_no_heartbeats() -> None:
    async def send(before: Any, self: Any, message: Hello | Heartbeat) -> None:
        if isinstance(message, Hello):
            await before(self, message)

    wrap(amqp.AmqpBroker, "send_heartbeat", send)


@found_by("cancel-stops-what-runs")
def ignores_cancels() -> None:
    wrap(receiver.Receiver, "_cancel", lambda *_: None)


@found_by("cancel-before-its-offer")
def ignores_cancels_of_what_it_does_not_know() -> None:
    def cancel(before: Any, self: Any, body: Any) -> None:
        if body.grant in self._attempts or body.grant in self._waiting:
            before(self, body)

    wrap(receiver.Receiver, "_cancel", cancel)


@found_by("cancel-after-the-end")
def cancels_what_has_ended() -> None:
    wrap(
        receiver.Receiver,
        "_cancel",
        lambda _, self, body: self._outbox.add(attempt.unstarted_end(body, body.status, body.reason)),
    )


@found_by("cancel-names-its-status")
def knows_one_status_of_cancels() -> None:
    wrap(
        receiver.Receiver,
        "_cancel",
        lambda cancel, self, body: cancel(self, replace(body, status=Status.CANCELLED)),
    )


@found_by("offer-after-the-commit-is-returned")
def forgets_what_has_ended() -> None:
    wrap(reporter.Outbox, "_note_over", lambda *_: None)


@found_by("offer-of-what-runs-is-answered")
def answers_no_repeated_offer() -> None:
    wrap(attempt.Attempts, "answer", lambda *_: None)


@found_by("offers-behind-a-gap-wait")
def starts_offers_behind_a_gap() -> None:
    def apply(before: Any, self: Any, message: Any) -> None:
        self._session.received.upto = max(self._session.received.upto, message.number - 1)
        before(self, message)

    wrap(receiver.Receiver, "_apply", apply)


@found_by("timeout-is-enforced")
def ignores_timeouts() -> None:
    wrap(attempt.Attempts, "_start", lambda start, self, each, now: start(self, _timeless(each), now))


def _timeless(each: Any) -> Any:
    return each._replace(offer=replace(each.offer, timeout_seconds=None))


@found_by("expired-offer-never-starts")
def ignores_expiries() -> None:
    wrap(waiting.WaitingList, "put", lambda put, self, each: put(self, each._replace(expires_at=inf)))


@found_by("doubt-starts-nothing")
def starts_while_its_lease_is_in_doubt() -> None:
    def standing(before: Any, self: Any, now: float) -> Any:
        found = before(self, now)
        return Standing.CERTAIN if found is Standing.IN_DOUBT else found

    wrap(lease.Lease, "standing", standing)


@found_by("doubt-starts-nothing")
def probes_nothing() -> None:
    async def no(*_: Any) -> bool:
        return False

    wrap(lease.LeaseKeeper, "_reaches", no)


@found_by("lost-lease-kills-everything")
def runs_on_without_a_lease() -> None:
    def standing(before: Any, self: Any, now: float) -> Any:
        self._spared_until = inf
        return before(self, now)

    wrap(lease.Lease, "standing", standing)
    wrap(lease.Lease, "killed_from_outside_at", lambda *_: inf)


@found_by("dismissed-worker-begins-anew")
def keeps_its_id_for_ever() -> None:
    found: list[str] = []

    def same(before: Any, self: Any) -> str:
        found.append(before(self))
        return found[0]

    wrap(hosted.HostedWorker, "worker_id", same)


@found_by("lower-epoch-is-ignored")
def obeys_old_leaders() -> None:
    wrap(session.Session, "admits", lambda admits, self, message: admits(self, message) or True)


@found_by("takeover-repeats-what-is-kept")
def repeats_nothing() -> None:
    wrap(reporter.Outbox, "repeat", lambda *_: None)


@found_by("welcome-is-answered-with-held")
def holds_its_tongue() -> None:
    without(Held)


@found_by("held-lists-everything")
def forgets_its_ends_in_held() -> None:
    wrap(reporter.Outbox, "held", lambda *_: [])


@found_by("long-run-is-reported-as-started")
def reports_no_starts() -> None:
    without(AttemptStarted)


@found_by("drain-timeout-returns-what-runs")
def says_that_nothing_had_started() -> None:
    change(AttemptReturned, had_started=False)


@found_by("sigterm-drains")
def leaves_without_a_word() -> None:
    without(Leaving)


@found_by("leaving-waits-for-the-commit")
def leaves_at_once() -> None:
    wrap(WorkerConfig, "__init__", lambda init, self, **given: init(self, **given, leave_seconds=0.0))


@found_by("reports-are-numbered")
def leaves_out_numbers() -> None:
    def take(before: Any, self: Any, of: Any) -> Any:
        return [replace(each, number=2 * each.number) for each in before(self, of)]

    wrap(reporter.Outbox, "take", take)


@found_by("failure-is-reported")
def retries_everything() -> None:
    change(AttemptEnded, is_retryable=True)


@found_by("log-is-whole")
def loses_logs() -> None:
    change(AttemptEnded, log=None)
    wrap(amqp.AmqpBroker, "publish_live", _nothing)


async def _nothing(*_: Any) -> None:
    """Publish nothing."""


if __name__ == "__main__":
    FAULTS[sys.argv[1]][1]()
    sys.argv = ["worker", "serve", "--actions", "turnstile.testing.worker_check.actions"]
    cli.main()
