"""How long executions take: shares of a load, as people write them.

In: `70% 0ms, 25% 20ms, 5% 500ms`. Out: shares that add up to one, and their durations.
"""

import math
import re
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from turnstile.common.domain.durations import format_duration, parse_duration

_EXAMPLE: Final = "70% 0ms, 25% 20ms, 5% 500ms"
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%\s+(\S+)")


class Part(NamedTuple):
    """Of all executions `share` take so long."""

    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DurationMix:
    """What executions of one load take."""

    parts: tuple[Part, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read shares and durations; raises ValueError that says what was expected."""
        parts = [_part(piece.strip()) for piece in text.split(",")]
        total = sum(part.share for part in parts)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(
                f"the shares add up to {total:.4g}, not to 100%; expected for example {_EXAMPLE!r}"
            )
        return cls(tuple(parts))

    @classmethod
    def always(cls, seconds: float) -> Self:
        """Return the mix in which every execution takes the same."""
        return cls((Part(1.0, seconds),))

    @property
    def mean_seconds(self) -> float:
        """What one execution takes on average."""
        return sum(part.share * part.seconds for part in self.parts)

    def __str__(self) -> str:
        return ", ".join(f"{100 * part.share:g}% {format_duration(part.seconds)}" for part in self.parts)


def _part(piece: str) -> Part:
    match = _PART.fullmatch(piece)
    if match is None:
        raise ValueError(f"{piece[:60]!r} is not a share and a duration; expected for example {_EXAMPLE!r}")
    return Part(float(match[1]) / 100, parse_duration(match[2]))
