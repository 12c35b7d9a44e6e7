"""Times several kinds of turn in turn, so that whatever the machine does besides hits all of them alike."""

from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import Final, TypeVar

Kind = TypeVar("Kind")
Turn = Callable[[], Awaitable[float]]
"""Does one turn and returns the seconds of its timed part."""

_WARM_UP_TURNS: Final = 10


async def interleaved_medians(kinds: Mapping[Kind, Turn], turns: int) -> dict[Kind, float]:
    """Return the median seconds of each kind; another kind goes first each time."""
    order = list(kinds)
    seconds: dict[Kind, list[float]] = {kind: [] for kind in order}
    for number in range(_WARM_UP_TURNS + turns):
        for kind in order:
            took = await kinds[kind]()
            if number >= _WARM_UP_TURNS:
                seconds[kind].append(took)
        # What goes before leaves its marks in the caches of what comes next.
        order.append(order.pop(0))
    return {kind: median(each) for kind, each in seconds.items()}
