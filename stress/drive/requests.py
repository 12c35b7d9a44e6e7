"""From an order to the message that asks for it, and from an answer back to its order.

In: rows of ORDER. Out: `Outgoing`s, their bodies written by hand: this process must ask faster than any
installation can take it. The message id names stage and order, so that a repeat is known again (P5) and an
answer finds its row. Next: `submitter` sends them, `answers` reads what comes back.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.common.messages import REQUESTED
from turnstile.stress.names import action_ref
from turnstile.stress.stage import Load
from turnstile.stress.tables import NONE, Table


class Requests:
    """Writes the messages of one stage; `token` is what its executions are known by."""

    def __init__(self, orders: Table, load: Load, *, token: str, reply_to: str | None) -> None:
        self.token: Final = token
        self._prefix: Final = f"{token}-"
        self._reply_to = reply_to
        self._queues = orders["queue"]
        self._durations_us = orders["duration_us"]
        self._heads = [_head(queue, load) for queue in range(load.queues)]
        self._tails = {
            us: f',"milliseconds":{us / 1000},"stage":"{token}"}}}}'.encode()
            for us in {round(part.seconds * 1_000_000) for part in load.mix.parts}
        }

    def messages(self, numbers: NDArray[np.int64]) -> list[Outgoing]:
        """Return the messages for orders."""
        return [
            self._message(number, queue, duration_us)
            for number, queue, duration_us in zip(
                numbers.tolist(),
                self._queues[numbers].tolist(),
                self._durations_us[numbers].tolist(),
                strict=True,
            )
        ]

    def number_of(self, correlation_id: str | None) -> int:
        """Return which order an answer is about; NONE: none of this stage."""
        if correlation_id is None or not correlation_id.startswith(self._prefix):
            return NONE
        digits = correlation_id.removeprefix(self._prefix)
        number = int(digits) if digits.isascii() and digits.isdigit() else NONE
        return number if number < len(self._queues) else NONE

    def _message(self, number: int, queue: int, duration_us: int) -> Outgoing:
        message_id = f"{self._prefix}{number}"
        return Outgoing(
            exchange=EXECUTIONS,
            routing_key=EXECUTION_REQUESTED,
            body=b'%b"parameters":{"number":%d%b' % (self._heads[queue], number, self._tails[duration_us]),
            type=REQUESTED,
            message_id=message_id,
            correlation_id=None if self._reply_to is None else message_id,
            reply_to=self._reply_to,
            app_id="client",
        )


def _head(queue: int, load: Load) -> bytes:
    number, key = divmod(queue, max(load.keys, 1))
    concurrency_key = f'"concurrency_key":"{key}",' if load.keys else ""
    return f'{{"action_ref":"{action_ref(number)}",{concurrency_key}'.encode()
