"""How much of each resource and pool was held lately: means by minute over the last hour of a leadership.

In: the state, at a committed turn every few seconds. Out: one number for each minute. It is in memory only,
and begins with the leadership; the metrics have what was before.
"""

from collections import deque
from typing import Final, Literal, NamedTuple, TypeAlias

from turnstile.executor.questions.gates import pool_holders
from turnstile.executor.queue_manager.state import State

MINUTES: Final = 60
_EVERY_SECONDS: Final = 5.0
"""Time between two samples: leaders take a turn at least this often."""

Kind: TypeAlias = Literal["resource", "pool"]


class _Minute(NamedTuple):
    number: int
    held: int
    samples: int


class UseHistory:
    """Samples of one leadership. Instants in seconds, of any one clock."""

    def __init__(self) -> None:
        self._sampled_at: float | None = None
        self._minutes: dict[tuple[Kind, str], deque[_Minute]] = {}
        """Oldest first; of what exists now."""

    def note(self, state: State, now: float) -> None:
        """Take a sample, unless the last one was just taken."""
        if self._sampled_at is not None and now < self._sampled_at + _EVERY_SECONDS:
            return
        self._sampled_at = now
        held: dict[tuple[Kind, str], int] = {
            ("resource", name): gate.held for name, gate in state.resources.items()
        }
        held |= {("pool", name): len(pool_holders(state, name)) for name in state.pools}
        before, self._minutes = self._minutes, {}
        for name, count in held.items():
            minutes = self._minutes[name] = before.get(name) or deque(maxlen=MINUTES)
            last = _Minute(_minute_of(now), 0, 0)
            if minutes and minutes[-1].number == last.number:
                last = minutes.pop()
            minutes.append(last._replace(held=last.held + count, samples=last.samples + 1))

    def of(self, kind: Kind, name: str, now: float) -> tuple[float | None, ...]:
        """Return what was held in each of the last minutes, the oldest first; None: it is not known."""
        known = {
            each.number: round(each.held / each.samples, 2) for each in self._minutes.get((kind, name), ())
        }
        last = _minute_of(now)
        return tuple(known.get(number) for number in range(last - MINUTES + 1, last + 1))


def _minute_of(now: float) -> int:
    return int(now // 60)
