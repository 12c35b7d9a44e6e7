"""Durations as text: `250ms`, `30s`, `5m`, `1h30m`, or a number of seconds."""

import math
import re
from typing import Final

_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
SECONDS_MAX: Final = 10 * 366 * 86400.0
"""Ten years: far above any use, far below the overflow of a timestamp."""


def parse_duration(text: object) -> float:
    """Return the seconds of a duration; raises ValueError, with an example, outside zero to ten years."""
    seconds = _seconds(text)
    if not math.isfinite(seconds) or seconds < 0 or seconds > SECONDS_MAX:
        raise ValueError(f"duration out of range: {text!r:.60}; expected between 0 and 10 years, like '5m'")
    return seconds


def _seconds(text: object) -> float:
    if isinstance(text, float) or (isinstance(text, int) and not isinstance(text, bool)):
        # A long integer would overflow a float; beyond the bound its exact value does not matter.
        return float(max(-1.0, min(text, 2 * SECONDS_MAX)))
    if not isinstance(text, str):
        raise ValueError(f"not a duration: {text!r:.60}; expected for example '250ms', '30s', '1h30m' or 2.5")
    compact = text.strip().lower().replace(" ", "")
    if _NUMBER.fullmatch(compact):
        return float(compact)
    if not _WHOLE.fullmatch(compact):
        raise ValueError(f"not a duration: {text!r:.60}; expected for example '250ms', '30s', '1h30m' or 2.5")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(compact))


def format_duration(seconds: float) -> str:
    """Return `seconds` as the shortest text that `parse_duration` reads back (to the millisecond)."""
    milliseconds = round(seconds * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_elapsed(seconds: float) -> str:
    """Return a measured time: below a minute to a tenth of a second, else to the second."""
    return f"{seconds:.1f}s" if seconds < 59.95 else format_duration(round(seconds))
