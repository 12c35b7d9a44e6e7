"""Publishes `execution.status_changed` while a queue is bound to it, and costs a comparison while none is.

In: status changes, after their commit. Out: events in order, gathered into few writes. They are advisory and
may be lost. At most every 100 ms one event has the mandatory flag and is a probe: the broker returns it where
no queue is bound. Then, until 100 ms after the probe was sent, no event is built or sent. The next event is a
probe again, sent alone and at once; those behind it wait up to 50 ms for its return. So each event that
occurs 100 ms or more after a queue was bound is sent, and an idle system sends every event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from time import monotonic
from typing import Final

from pydantic_core import to_json

from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_STATUS_CHANGED, EXECUTIONS
from turnstile.common.envelopes import envelope
from turnstile.executor.leader.ports import StatusChanged

PROBE_SECONDS: Final = 0.1
"""The least time between two probes; within it a new listener is noticed."""
_ANSWER_SECONDS: Final = 0.05
"""How long events wait for the return of a probe; without it there is a listener, as far as is known."""
_GATHER_SECONDS: Final = 0.005
"""Events of this duration are published in one write while a queue is bound."""


class StatusEvents:
    """The status events of one process."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        publisher.on_announcement_returned = self._note_return
        self._waiting: list[Iterable[StatusChanged]] = []
        self._silent_until = 0.0
        self._heard = False
        """Whether the latest probe was not returned, as far as is known."""
        self._probe_id: str | None = None
        self._probed_at = float("-inf")
        self._flush: asyncio.TimerHandle | None = None

    @property
    def wanted(self) -> bool:
        """Whether an event would be sent now."""
        return monotonic() >= self._silent_until

    def add(self, changes: Iterable[StatusChanged]) -> None:
        """Publish these changes within milliseconds if a queue is bound to status events.

        They are read when they are sent, so changes that an iterator builds cost nothing if none is bound.
        """
        if not self.wanted:
            return
        if self._flush is None and not self._heard:
            changes = iter(changes)
            probe = next(changes, None)
            if probe is None:
                return
            self._send([probe])
            self._flush_after(_ANSWER_SECONDS)
        elif self._flush is None:
            self._flush_after(_GATHER_SECONDS)
        self._waiting.append(changes)

    def _note_return(self, message_id: str) -> None:
        if message_id != self._probe_id:
            return
        self._probe_id, self._heard = None, False
        silent_until = self._probed_at + PROBE_SECONDS
        # An answer that took longer says nothing about the events that occurred since.
        if monotonic() < silent_until:
            self._silent_until = silent_until
            self._waiting.clear()
            if self._flush is not None:
                self._flush.cancel()
                self._flush = None

    def _flush_after(self, seconds: float) -> None:
        self._flush = asyncio.get_running_loop().call_later(seconds, self._send_waiting)

    def _send_waiting(self) -> None:
        self._flush, self._heard = None, True
        changes, self._waiting = list(chain.from_iterable(self._waiting)), []
        if changes:
            self._send(changes)

    def _send(self, changes: Sequence[StatusChanged]) -> None:
        now = monotonic()
        probes = now - self._probed_at >= PROBE_SECONDS
        messages = [status_message(changes[0], mandatory=probes)]
        messages += [status_message(each, mandatory=False) for each in changes[1:]]
        if probes:
            self._probe_id, self._probed_at = messages[0].message_id, now
        self._publisher.announce(messages)


def status_message(changed: StatusChanged, *, mandatory: bool) -> Outgoing:
    """Announce a status change to all queues that bind; may be lost.

    `mandatory`: the broker returns it where no queue is bound.
    """
    return envelope(
        _status_body(changed),
        message_type=EXECUTION_STATUS_CHANGED,
        exchange=EXECUTIONS,
        routing_key=EXECUTION_STATUS_CHANGED,
        app_id="executor",
        correlation_id=str(changed.execution_id),
        persistent=False,
        mandatory=mandatory,
    )


def _status_body(changed: StatusChanged) -> bytes:
    previous = changed.previous_status
    return (
        b'{"execution_id":%d,"action_ref":%b,"status":"%b","previous_status":%b,"attempt":%d,"changed_at":%b}'
    ) % (
        changed.execution_id,
        _ref_json(changed.action_ref),
        changed.status.encode(),
        b"null" if previous is None else b'"%b"' % previous.encode(),
        changed.attempt,
        to_json(changed.changed_at),
    )


@lru_cache(maxsize=4096)
def _ref_json(action_ref: str) -> bytes:
    return to_json(action_ref)
